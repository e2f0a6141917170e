#pragma once
#include "Graph.hpp"
