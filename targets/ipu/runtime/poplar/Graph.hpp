// The graph: variables with tile mappings, vertices in compute sets, remote buffers and streams.
#pragma once
#include <deque>
#include <initializer_list>
#include <map>
#include <string>

#include "Tensor.hpp"
#include "Vertex.hpp"

namespace poplar {

class Target {
public:
  explicit Target(unsigned ipus = 1, unsigned tilesPerIpu = 0) : ipus_(ipus), tiles_(tilesPerIpu) {}
  unsigned getNumTiles() const { return ipus_ * tiles_; }
  unsigned getNumIPUs() const { return ipus_; }
  unsigned getTilesPerIPU() const { return tiles_; }

private:
  unsigned ipus_, tiles_;
};

class Device {
public:
  explicit Device(Target target = Target()) : target_(target) {}
  const Target &getTarget() const { return target_; }

private:
  Target target_;
};

// A device of `numIPUs` times `tilesPerIPU` tiles, simulated on the host.
struct IPUModel {
  unsigned numIPUs = 1, tilesPerIPU = 1472;
  Device createDevice() const { return Device(Target(numIPUs, tilesPerIPU)); }
};

namespace lite {

struct Connection {
  std::string field;
  Tensor tensor;
};

struct VertexNode {
  const VertexInfo *info;
  std::vector<Connection> edges;
  std::map<std::string, std::vector<char>> values;
  unsigned tile = ~0u;
  std::uint64_t cycles = 0;
};

struct ComputeSetNode {
  std::string name;
  std::vector<VertexNode> vertices;
};

struct RemoteNode {
  std::string handle;
  Type type;
  std::size_t rowElements, rows;
};

struct StreamNode {
  std::string handle;
  Type type;
  std::size_t elements;
};

} // namespace lite

class ComputeSet {
public:
  explicit ComputeSet(lite::ComputeSetNode *node = nullptr) : node(node) {}
  lite::ComputeSetNode *node;
};

class RemoteBuffer {
public:
  explicit RemoteBuffer(lite::RemoteNode *node = nullptr) : node(node) {}
  std::size_t numElements() const { return node->rowElements; }
  std::size_t getRepeats() const { return node->rows; }
  lite::RemoteNode *node;
};

class DataStream {
public:
  explicit DataStream(lite::StreamNode *node = nullptr) : node(node) {}
  lite::StreamNode *node;
};

class FieldRef {
public:
  lite::ComputeSetNode *set;
  std::size_t index;
  const char *name;
};

class VertexRef {
public:
  FieldRef operator[](const char *field) const { return {set, index, field}; }
  lite::VertexNode &node() const { return set->vertices[index]; }
  lite::ComputeSetNode *set = nullptr;
  std::size_t index = 0;
};

struct ConnectionDesc {
  const char *field;
  Tensor tensor;
};

class Graph {
public:
  explicit Graph(const Target &target) : target_(target) {}
  Graph(const Graph &) = delete;
  Graph &operator=(const Graph &) = delete;

  const Target &getTarget() const { return target_; }

  // popc compiles codelets; here they are compiled with the program and already known.
  bool addCodelets(const std::string &) { return true; }

  Tensor addVariable(const Type &type, ArrayRef<std::size_t> shape, const DebugContext &name = {});

  template <class T>
  Tensor addConstant(const Type &type, ArrayRef<std::size_t> shape, ArrayRef<T> values,
                     const DebugContext &name = {}) {
    Tensor t = addVariable(type, shape, name);
    if (values.size() != t.numElements() || type.bytes() != sizeof(T))
      throw poplar_error("constant " + name.name + ": wrong number or type of values");
    std::vector<char> &to = variables.back().initial;
    to.resize(values.size() * sizeof(T));
    if (values.size())
      std::memcpy(to.data(), values.begin(), to.size());
    return t;
  }

  // All elements of a tensor, or a vertex, on one tile.
  void setTileMapping(const Tensor &t, unsigned tile);
  void setTileMapping(const VertexRef &v, unsigned tile);

  ComputeSet addComputeSet(const DebugContext &name = {});

  VertexRef addVertex(ComputeSet cs, const char *type, ArrayRef<ConnectionDesc> edges = {});

  void connect(const FieldRef &field, const Tensor &t);

  template <class T> void setInitialValue(const FieldRef &field, T value) {
    setValue(field, &value, sizeof(T), equivalent_device_type<T>::value);
  }

  void setPerfEstimate(const VertexRef &v, std::uint64_t cycles, std::uint64_t = 0) {
    v.node().cycles = cycles;
  }

  RemoteBuffer addRemoteBuffer(const std::string &handle, const Type &type, std::size_t numElements,
                               std::size_t repeats = 1);
  DataStream addHostToDeviceFIFO(const std::string &handle, const Type &type,
                                 std::size_t numElements);
  DataStream addDeviceToHostFIFO(const std::string &handle, const Type &type,
                                 std::size_t numElements) {
    return addHostToDeviceFIFO(handle, type, numElements);
  }

  // Of the runtime.
  std::deque<lite::Variable> variables;
  std::deque<lite::ComputeSetNode> computeSets;
  std::deque<lite::RemoteNode> remotes;
  std::deque<lite::StreamNode> streams;

private:
  void setValue(const FieldRef &field, const void *value, std::size_t bytes, const Type &type);
  Target target_;
};

POPLAR_LITE_COLD Tensor Graph::addVariable(const Type &type, ArrayRef<std::size_t> shape,
                                           const DebugContext &name) {
  const std::size_t n = lite::product(shape);
  variables.push_back({type, n, name.name, {}, -1, {}});
  return Tensor(type, std::vector<std::size_t>(shape.begin(), shape.end()),
                {{&variables.back(), 0, n, 0}});
}

POPLAR_LITE_COLD ComputeSet Graph::addComputeSet(const DebugContext &name) {
  computeSets.push_back({name.name, {}});
  return ComputeSet(&computeSets.back());
}

POPLAR_LITE_COLD RemoteBuffer Graph::addRemoteBuffer(const std::string &handle, const Type &type,
                                                     std::size_t numElements,
                                                     std::size_t repeats) {
  remotes.push_back({handle, type, numElements, repeats});
  return RemoteBuffer(&remotes.back());
}

POPLAR_LITE_COLD DataStream Graph::addHostToDeviceFIFO(const std::string &handle, const Type &type,
                                                       std::size_t numElements) {
  streams.push_back({handle, type, numElements});
  return DataStream(&streams.back());
}

POPLAR_LITE_COLD void Graph::connect(const FieldRef &field, const Tensor &t) {
  field.set->vertices[field.index].edges.push_back({field.name, t});
}

POPLAR_LITE_COLD void Graph::setTileMapping(const VertexRef &v, unsigned tile) {
  if (tile >= target_.getNumTiles())
    throw poplar_error("there is no tile " + std::to_string(tile));
  v.node().tile = tile;
}

POPLAR_LITE_COLD void Graph::setTileMapping(const Tensor &t, unsigned tile) {
  if (tile >= target_.getNumTiles())
    throw poplar_error("there is no tile " + std::to_string(tile));
  for (const lite::Region &r : t.regions())
    r.variable->mapping.push_back({r.begin, r.begin + r.count, tile, 0});
}

POPLAR_LITE_COLD VertexRef Graph::addVertex(ComputeSet cs, const char *type,
                                            ArrayRef<ConnectionDesc> edges) {
  for (const lite::VertexInfo *info : lite::vertexTypes())
    if (!std::strcmp(type, info->name)) {
      lite::VertexNode node;
      node.info = info;
      for (const ConnectionDesc &edge : edges)
        node.edges.push_back({edge.field, edge.tensor});
      cs.node->vertices.push_back(std::move(node));
      VertexRef v;
      v.set = cs.node;
      v.index = cs.node->vertices.size() - 1;
      return v;
    }
  throw poplar_error("there is no codelet " + std::string(type));
}

POPLAR_LITE_COLD void Graph::setValue(const FieldRef &field, const void *value, std::size_t bytes,
                                      const Type &type) {
  lite::VertexNode &node = field.set->vertices[field.index];
  for (const lite::FieldInfo &info : node.info->list())
    if (!std::strcmp(field.name, info.name) && info.kind == lite::FieldKind::Value && info.type == type) {
      const char *from = static_cast<const char *>(value);
      node.values[field.name].assign(from, from + bytes);
      return;
    }
  throw poplar_error(std::string(node.info->name) + " has no value " + field.name +
                     " of type " + type.toString());
}

} // namespace poplar
