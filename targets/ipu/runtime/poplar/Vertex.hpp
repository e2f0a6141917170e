// What codelets are written with: vertices and their fields.
#pragma once
#include <utility>

#include "Type.hpp"

namespace poplar {

enum class VectorLayout { SPAN, ONE_PTR };

template <class T, VectorLayout L = VectorLayout::SPAN, unsigned Alignment = alignof(T)>
class Vector;

namespace lite {
// How the runtime fills in a field: the address of its elements in the tile's memory.
struct Edge {
  void *data = nullptr;
  std::size_t count = 0;
};
enum class FieldKind { Input, Output, InOut, Value };
template <class T> struct Field {
  static constexpr FieldKind kind = FieldKind::Value;
  static constexpr bool vector = false;
  using Element = T;
};
} // namespace lite

#define POPLAR_LITE_EDGE(NAME, CONST)                                                             \
  template <class T> class NAME {                                                                 \
    lite::Edge edge;                                                                              \
                                                                                                  \
  public:                                                                                         \
    CONST T &operator*() const { return *static_cast<CONST T *>(edge.data); }                     \
    operator CONST T &() const { return **this; }                                                 \
  };                                                                                              \
  template <class T, VectorLayout L, unsigned A> class NAME<Vector<T, L, A>> {                    \
    lite::Edge edge;                                                                              \
                                                                                                  \
  public:                                                                                         \
    CONST T &operator[](std::size_t i) const { return static_cast<CONST T *>(edge.data)[i]; }     \
    std::size_t size() const { return edge.count; }                                               \
  };                                                                                              \
  namespace lite {                                                                                \
  template <class T> struct Field<NAME<T>> {                                                      \
    static constexpr FieldKind kind = FieldKind::NAME;                                            \
    static constexpr bool vector = false;                                                         \
    using Element = T;                                                                            \
  };                                                                                              \
  template <class T, VectorLayout L, unsigned A> struct Field<NAME<Vector<T, L, A>>> {            \
    static constexpr FieldKind kind = FieldKind::NAME;                                            \
    static constexpr bool vector = true;                                                          \
    using Element = T;                                                                            \
  };                                                                                              \
  }
POPLAR_LITE_EDGE(Input, const)
POPLAR_LITE_EDGE(Output, )
POPLAR_LITE_EDGE(InOut, )
#undef POPLAR_LITE_EDGE

// Runs on one worker thread of its tile.
class Vertex {};

// Runs on all worker threads of its tile: compute(workerId).
class MultiVertex {
public:
  static constexpr unsigned numWorkers() { return 6; }
};

namespace lite {

struct FieldInfo {
  const char *name;
  std::size_t offset;
  FieldKind kind;
  bool vector;
  Type type;
};

// A vertex class: its state is `bytes` bytes, all zero before its fields are filled in.
struct VertexInfo {
  const char *name;
  std::size_t bytes;
  void (*compute)(void *);
  const FieldInfo *fields;
  std::size_t count;
  std::vector<FieldInfo> list() const { return {fields, fields + count}; }
};

inline std::vector<const VertexInfo *> &vertexTypes() {
  static std::vector<const VertexInfo *> types;
  return types;
}

template <class V, class = void> struct Compute {
  static void run(void *v) { static_cast<V *>(v)->compute(); }
};
template <class V> struct Compute<V, decltype(void(std::declval<V>().compute(0u)))> {
  static void run(void *v) {
    for (unsigned worker = 0; worker < MultiVertex::numWorkers(); ++worker)
      static_cast<V *>(v)->compute(worker);
  }
};

template <class F> constexpr FieldInfo fieldInfo(const char *name, std::size_t offset) {
  using D = Field<F>;
  return {name, offset, D::kind, D::vector, equivalent_device_type<typename D::Element>::value};
}

struct Registered {
  Registered(const VertexInfo &info);
};
POPLAR_LITE_COLD Registered::Registered(const VertexInfo &info) { vertexTypes().push_back(&info); }

} // namespace lite
} // namespace poplar

// C++17 has no reflection, and popc, which reads the fields of a vertex from its source, is not
// here: a program that is compiled against this runtime names them.
#define POPLAR_LITE_FIELD(F)                                                                      \
  poplar::lite::fieldInfo<decltype(Of::F)>(#F, __builtin_offsetof(Of, F))
#define POPLAR_LITE_VERTEX(V, ...)                                                                \
  struct V##_fields {                                                                             \
    using Of = V;                                                                                 \
    static constexpr poplar::lite::FieldInfo list[] = {__VA_ARGS__};                              \
  };                                                                                              \
  static constexpr poplar::lite::VertexInfo V##_info = {                                          \
      #V, sizeof(V), poplar::lite::Compute<V>::run, V##_fields::list,                             \
      sizeof V##_fields::list / sizeof V##_fields::list[0]};                                      \
  static const poplar::lite::Registered V##_registered(V##_info)
