// The engine: loads a graph and its programs, and runs them.
#pragma once
#include "Program.hpp"

namespace poplar {

class Engine {
public:
  Engine(const Graph &graph, const program::Program &program)
      : Engine(graph, ArrayRef<program::Program>({program})) {}
  Engine(const Graph &graph, ArrayRef<program::Program> programs)
      : graph_(const_cast<Graph &>(graph)), programs_(programs.begin(), programs.end()) {}

  void load(const Device &device) { machine_.load(graph_, device.getTarget().getNumTiles()); }

  void run(unsigned i = 0) {
    programs_.at(i).step->run(machine_);
    machine_.land(nullptr);
  }

  void connectStream(const std::string &handle, void *begin, void *end) {
    machine_.streams[handle] = {static_cast<char *>(begin), static_cast<char *>(end)};
  }
  void copyToRemoteBuffer(const void *data, const std::string &handle, std::uint64_t row,
                          unsigned = 0) {
    std::vector<char> &buffer = machine_.remote(handle);
    std::memcpy(buffer.data() + place(handle, row), data, rowBytes(handle));
  }
  void copyFromRemoteBuffer(const std::string &handle, void *data, std::uint64_t row, unsigned = 0) {
    const std::vector<char> &buffer = machine_.remote(handle);
    std::memcpy(data, buffer.data() + place(handle, row), rowBytes(handle));
  }

  lite::Machine &machine() { return machine_; }

private:
  std::size_t rowBytes(const std::string &handle) const {
    for (const lite::RemoteNode &r : graph_.remotes)
      if (r.handle == handle)
        return r.rowElements * r.type.bytes();
    throw poplar_error("there is no remote buffer " + handle);
  }
  std::size_t place(const std::string &handle, std::uint64_t row) {
    const std::size_t bytes = rowBytes(handle), at = static_cast<std::size_t>(row) * bytes;
    if (at + bytes > machine_.remote(handle).size())
      throw poplar_error("remote buffer " + handle + " has no row " + std::to_string(row));
    return at;
  }
  Graph &graph_;
  std::vector<program::Program> programs_;
  lite::Machine machine_;
};

} // namespace poplar
