#pragma once
#include "Type.hpp"
