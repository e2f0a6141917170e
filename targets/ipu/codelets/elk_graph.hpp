// Layouts as Poplar programs: what the loops below over cores are made of.
namespace elk {

using poplar::Tensor;
using poplar::program::Copy;
using poplar::program::Execute;
using poplar::program::Sequence;
using Sizes = std::vector<std::size_t>;

// Poplar chooses where a variable lies; the compiler's choice can only be told to a runtime that
// takes it.
inline void placeAt(const Tensor &t, long address) {
#ifdef POPLAR_LITE
  poplar::lite::setAddress(t, address);
#else
  (void)t, (void)address;
#endif
}

// Poplar has no copy from a remote buffer that runs beside Execute: plain Poplar makes it here, in
// order. A runtime that has one starts it here and completes it at the wait.
inline void start(Sequence &prog, const char *name, const Sequence &copy) {
#ifdef POPLAR_LITE
  prog.add(poplar::lite::Start(name, copy));
#else
  (void)name;
  prog.add(copy);
#endif
}
inline void wait(Sequence &prog, const char *name) {
#ifdef POPLAR_LITE
  prog.add(poplar::lite::Wait(name));
#else
  (void)prog, (void)name;
#endif
}

// A part of a tensor: row c is what core c holds of it, slots first, on tile c. The name is the one
// in the engine's reports.
struct Variable {
  const Layout &layout;
  std::string name;
  Tensor tensor;

  Variable(poplar::Graph &graph, const poplar::Type &type, const Layout &layout,
           const std::string &name, long address)
      : layout(layout), name(name) {
    const size_t n = static_cast<size_t>(layout.elements());
    tensor = graph.addVariable(type, {layout.cores, n}, {name});
    for (unsigned c = 0; c < layout.cores; ++c)
      graph.setTileMapping(tensor.flatten().slice(c * n, (c + 1) * n), c);
    placeAt(tensor, address);
  }

  // The block of a core in the given slots, 0 unless they are given.
  Tensor block(long c, Slots slot = {}) const {
    long first = 0;
    for (size_t j = 0; j < slot.size(); ++j)
      first = first * layout.axes[j].slots + slot.begin()[j];
    const long n = product(layout.blockShape());
    return tensor[c].slice(first * n, (first + 1) * n);
  }

  // What a core holds in the given slots, -1 for all along an axis; flat.
  Tensor slots(long c, Slots slot) const {
    if (!slot.size())
      return tensor[c].flatten();
    const Longs all = layout.slots(), inner = layout.blockShape();
    Sizes shape(all.begin(), all.end());
    shape.insert(shape.end(), inner.begin(), inner.end());
    Tensor view = tensor[c].reshape(shape);
    for (size_t j = 0; j < slot.size(); ++j)
      if (slot.begin()[j] >= 0)
        view = view.slice(slot.begin()[j], slot.begin()[j] + 1, j);
    return view.flatten();
  }

  // A box of a block.
  Tensor view(const Part &p) const {
    const Longs inner = layout.blockShape();
    Tensor v = tensor[p.core].slice(p.first, p.first + product(inner));
    v = v.reshape(Sizes(inner.begin(), inner.end()));
    for (size_t j = 0; j < inner.size(); ++j)
      v = v.slice(p.start[j], p.start[j] + p.shape[j], j);
    return v;
  }
};

// The statistics of an operator: variables of one type, whose names end in their numbers.
struct Variables {
  struct Place {
    const Layout &layout;
    long address;
  };
  std::vector<Variable> list;

  Variables(poplar::Graph &graph, const poplar::Type &type, const std::string &name,
            std::initializer_list<Place> places) {
    for (const Place &p : places)
      list.emplace_back(graph, type, p.layout, name + std::to_string(list.size()), p.address);
  }
  const Variable &operator[](size_t i) const { return list[i]; }
};

inline const Variable &firstOf(const Variable &x) { return x; }
inline const Variable &firstOf(const Variables &x) { return x[0]; }

// The fields `field`0, `field`1, … of a vertex on core c are the blocks of the statistics.
inline void connect(poplar::Graph &graph, const poplar::VertexRef &v, const std::string &field,
                    const Variable &x, unsigned c) {
  graph.connect(v[(field + "0").c_str()], x.block(c));
}
inline void connect(poplar::Graph &graph, const poplar::VertexRef &v, const std::string &field,
                    const Variables &x, unsigned c) {
  for (size_t i = 0; i < x.list.size(); ++i)
    graph.connect(v[(field + std::to_string(i)).c_str()], x[i].block(c));
}

// One exchange that carries out all of `list`.
inline void exchange(Sequence &prog, const std::vector<Move> &list, const Variable &source,
                     const Variable &target, const std::string &name) {
  std::vector<Tensor> s, t;
  for (const Move &m : list) {
    s.push_back(source.view(m.from).flatten());
    t.push_back(target.view(m.to).flatten());
  }
  if (!s.empty())
    prog.add(Copy(poplar::concat(s), poplar::concat(t), false, {name}));
}

// Every core gets its blocks of the tensor in its new layout. `name`: the target's, if null.
inline void reshard(Sequence &prog, const Variable &source, const Variable &target,
                    const char *name = nullptr, int axis = -1, long first = 0) {
  exchange(prog, moves(source.layout, target.layout, axis, first), source, target,
           name ? name : target.name);
}
inline void reshard(Sequence &prog, const Variables &source, const Variables &target) {
  for (size_t i = 0; i < target.list.size(); ++i)
    reshard(prog, source[i], target[i]);
}

// Core c reads the slots of core sender(c) into a landing buffer: a ring shift.
inline void shift(Sequence &prog, const Variable &source, Slots slot, const Variable &target,
                  long (*sender)(long c, long t), long t, const char *name) {
  std::vector<Tensor> s, d;
  for (unsigned c = 0; c < target.layout.cores; ++c) {
    s.push_back(source.slots(sender(c, t), slot));
    d.push_back(target.tensor[c].slice(0, s.back().numElements()));
  }
  prog.add(Copy(poplar::concat(s), poplar::concat(d), false, {name}));
}

// Every core copies the elements of one of its buffers into slots of another.
inline void localCopy(Sequence &prog, const Variable &source, const Variable &target, Slots slot,
                      const char *name) {
  std::vector<Tensor> s, d;
  for (unsigned c = 0; c < target.layout.cores; ++c) {
    d.push_back(target.slots(c, slot));
    s.push_back(source.tensor[c].flatten().slice(0, d.back().numElements()));
  }
  prog.add(Copy(poplar::concat(s), poplar::concat(d), false, {name}));
}

// Set every element of a variable, each core its own. `name`: the variable's, if null.
template <class T>
void fill(poplar::Graph &graph, Sequence &prog, const Variable &x, const char *codelet, T value,
          const char *name = nullptr) {
  poplar::ComputeSet cs = graph.addComputeSet({(name ? name : x.name) + ".fill"});
  for (size_t c = 0; c < x.layout.cores; ++c) {
    poplar::VertexRef v = graph.addVertex(cs, codelet, {{"out", x.tensor[c].flatten()}});
    graph.setInitialValue(v["value"], value);
    graph.setTileMapping(v, c);
  }
  prog.add(Execute(cs));
}

// Tell a vertex its box: fields nD (points of dimension D), oD (its first) and sD (of a full box).
inline void setBox(poplar::Graph &graph, const poplar::VertexRef &v, const Block &box,
                   const char *fields) {
  std::istringstream list(fields);
  for (std::string f; list >> f;) {
    const size_t d = std::stoul(f.substr(1));
    const long value = f[0] == 'n' ? box.hi[d] - box.origin[d] : f[0] == 'o' ? box.origin[d] : box.shape[d];
    graph.setInitialValue(v[f.c_str()], static_cast<int>(value));
  }
}

// Partial statistics are gathered, several on each core of `points`, and merged there in order.
template <class T>
void combine(poplar::Graph &graph, Sequence &prog, const T &partial, const T &gathered,
             const T &merged, const char *codelet, const Layout &points, const char *box,
             unsigned cycles, const char *name = nullptr) {
  reshard(prog, partial, gathered);
  const Variable &first = firstOf(gathered);
  const int ways = static_cast<int>(first.layout.axes[0].extent);
  const std::string node = first.name.substr(0, first.name.rfind('.'));
  poplar::ComputeSet cs = graph.addComputeSet({name ? name : node + ".combine"});
  for (unsigned c = 0; c < points.cores; ++c) {
    const Block it = points.block(c);
    if (it.empty())
      continue;
    poplar::VertexRef v = graph.addVertex(cs, codelet);
    connect(graph, v, "g", gathered, c);
    connect(graph, v, "a", merged, c);
    setBox(graph, v, it, box);
    graph.setInitialValue(v["ways"], ways);
    graph.setPerfEstimate(v, cycles);
    graph.setTileMapping(v, c);
  }
  prog.add(Execute(cs));
}

// A tensor that is spread over all tiles.
inline Tensor staging(poplar::Graph &graph, const poplar::Type &type, size_t elements,
                      const char *name) {
  Tensor t = graph.addVariable(type, {elements}, {name});
  const size_t tiles = graph.getTarget().getNumTiles(), each = (elements + tiles - 1) / tiles;
  for (size_t i = 0; i * each < elements; ++i)
    graph.setTileMapping(t.slice(i * each, std::min(elements, (i + 1) * each)), i);
  return t;
}

// ------------------------------------------------------------------ HBM

// The tensor as a whole, as a view of the cores that hold it; `rest` stands for what none holds.
struct Assembly {
  const Variable &variable;
  const Owners &owners;
  const Tensor &rest;
  size_t next = 0, used = 0;

  Tensor along(size_t axis) {
    if (axis == owners.cuts.size()) {
      const Part &cell = owners.cells[next++];
      if (cell.first >= 0)
        return variable.view(cell);
      const size_t n = product(cell.shape);
      used += n;
      return rest.slice(used - n, used).reshape(Sizes(cell.shape.begin(), cell.shape.end()));
    }
    std::vector<Tensor> parts;
    for (size_t i = 0; i + 1 < owners.cuts[axis].size(); ++i)
      parts.push_back(along(axis + 1));
    return poplar::concat(parts, axis);
  }
};

// Rows of a remote buffer: those of `base`, or, in a loop over layers, those plus layer * stride.
inline Tensor rows(poplar::Graph &graph, Sequence &prog, const std::vector<unsigned> &base,
                   const Tensor *layer, unsigned stride, const char *name) {
  Tensor constant = graph.addConstant(poplar::UNSIGNED_INT, {base.size()}, poplar::ArrayRef<unsigned>(base), {std::string(name) + ".base"});
  graph.setTileMapping(constant, 0);
  if (!layer)
    return constant;
  Tensor result = graph.addVariable(poplar::UNSIGNED_INT, {base.size()}, {std::string(name) + ".rows"});
  graph.setTileMapping(result, 0);
  poplar::ComputeSet cs = graph.addComputeSet({std::string(name) + ".rows"});
  poplar::VertexRef v =
      graph.addVertex(cs, "LayerRows", {{"base", constant}, {"layer", *layer}, {"rows", result}});
  graph.setInitialValue(v["stride"], stride);
  graph.setTileMapping(v, 0);
  prog.add(Execute(cs));
  return result;
}

// Rows `first` + (o * extent + i) * inner + k for all o < outer, lo <= i < hi, k < inner.
inline std::vector<unsigned> rowList(unsigned first, unsigned outer, unsigned extent, unsigned lo,
                                     unsigned hi, unsigned inner = 1) {
  std::vector<unsigned> list;
  for (unsigned o = 0; o < outer; ++o)
    for (unsigned i = lo * inner; i < hi * inner; ++i)
      list.push_back(first + o * extent * inner + i);
  return list;
}

// Rows of `outer` tables of `count` entries, `inner` rows each, that a tensor of indices in HBM
// names. The indices are read in `later`, when the transfer's turn comes: a store may still be on
// its way.
inline Tensor indexRows(poplar::Graph &graph, Sequence &prog, Sequence &later,
                        poplar::RemoteBuffer indices, const poplar::Type &type, const char *codelet,
                        const Tensor *layer, unsigned plus, unsigned outer, unsigned count,
                        unsigned inner, const char *name) {
  const std::string label(name);
  Tensor ids = graph.addVariable(type, {indices.numElements()}, {label + ".indices"});
  graph.setTileMapping(ids, 0);
  later.add(Copy(indices, ids, {label + ".indices"}));
  Tensor result = graph.addVariable(poplar::UNSIGNED_INT, {outer * ids.numElements() * inner}, {label + ".rows"});
  graph.setTileMapping(result, 0);
  Tensor at = layer ? graph.addVariable(poplar::UNSIGNED_INT, {1}, {label + ".layer"})
                    : graph.addConstant(poplar::UNSIGNED_INT, {1}, poplar::ArrayRef<unsigned>({0u}));
  graph.setTileMapping(at, 0);
  if (layer) // by then the loop may have moved on
    prog.add(Copy(*layer, at, false, {label + ".layer"}));
  poplar::ComputeSet cs = graph.addComputeSet({label + ".rows"});
  poplar::VertexRef v =
      graph.addVertex(cs, codelet, {{"indices", ids}, {"layer", at}, {"rows", result}});
  graph.setInitialValue(v["plus"], plus);
  graph.setInitialValue(v["outer"], outer);
  graph.setInitialValue(v["count"], count);
  graph.setInitialValue(v["inner"], inner);
  graph.setTileMapping(v, 0);
  later.add(Execute(cs));
  return result;
}

#ifdef ELK_EMULATE_HBM
// A transfer on a machine without HBM: on every chip the last tile plays the controller. It waits
// until only the broadcast is left of the `cycles` that the transfer is modelled to take, and sends
// a word to every tile that would have received data. (A store sends it to the controller itself.)
inline void emulate(poplar::Graph &graph, Sequence &prog, const Layout &layout, bool store,
                    unsigned cycles, const char *name) {
  const unsigned each = graph.getTarget().getTilesPerIPU(), chips = graph.getTarget().getNumIPUs();
  const std::string label(name);
  Tensor words = graph.addVariable(poplar::UNSIGNED_INT, {chips}, {label + ".word"});
  Tensor tags = graph.addVariable(poplar::UNSIGNED_INT, {layout.cores}, {label + ".tag"});
  poplar::ComputeSet cs = graph.addComputeSet({label + ".hbm"});
  const unsigned wait = cycles > HBM_BROADCAST_CYCLES ? cycles - HBM_BROADCAST_CYCLES : 0;
  for (unsigned chip = 0; chip < chips; ++chip) {
    const unsigned tile = (chip + 1) * each - 1;
    graph.setTileMapping(words.slice(chip, chip + 1), tile);
    poplar::VertexRef v = graph.addVertex(cs, "HbmController", {{"word", words[chip]}});
    graph.setInitialValue(v["cycles"], wait);
    graph.setPerfEstimate(v, wait);
    graph.setTileMapping(v, tile);
  }
  std::vector<Tensor> from, to;
  for (unsigned c = 0; c < layout.cores; ++c) {
    graph.setTileMapping(tags.slice(c, c + 1), store ? (c / each + 1) * each - 1 : c);
    from.push_back(words.slice(c / each, c / each + 1));
    to.push_back(tags.slice(c, c + 1));
  }
  prog.add(Execute(cs));
  prog.add(Copy(poplar::concat(from), poplar::concat(to), false, {label + ".broadcast"}));
}
#endif

// Start the copy of rows of a remote buffer into a variable: the part of its tensor below `high`.
// Each element arrives once and is then passed on to the other cores that hold it. Rows of a remote
// buffer come whole: what no core wants of them lands in a scratch tensor. `cycles`: what the
// compiler takes it for. `first`: what is done when its turn comes.
inline void preload(poplar::Graph &graph, Sequence &prog, poplar::RemoteBuffer buffer, const Tensor &row,
                    const Variable &target, Slots high, unsigned cycles,
                    const Sequence &first = Sequence()) {
  const char *const name = target.name.c_str();
#ifdef ELK_EMULATE_HBM
  if (cycles) {
    Sequence delay;
    emulate(graph, delay, target.layout, false, cycles, name);
    return start(prog, name, delay);
  }
#endif
  (void)cycles;
  const Owners owners(target.layout, high);
  Tensor rest;
  if (owners.unheld)
    rest = staging(graph, target.tensor.elementType(), owners.unheld, name);
  const Tensor whole = Assembly{target, owners, rest}.along(0).flatten();
  Sequence copy;
  copy.add(first);
  if (row.valid())
    copy.add(Copy(buffer, whole, row, {name}));
  else
    copy.add(Copy(buffer, whole, {name}));
  exchange(copy, owners.copies, target, target, target.name + ".multicast");
  start(prog, name, copy);
}

// Start the copy of a variable into rows of a remote buffer. `first`: what is done when its turn
// comes.
inline void store(poplar::Graph &graph, Sequence &prog, const Variable &source,
                  poplar::RemoteBuffer buffer, const Tensor &row, unsigned cycles,
                  const Sequence &first = Sequence()) {
  const std::string label = source.name + ".store";
  const char *const name = label.c_str();
#ifdef ELK_EMULATE_HBM
  Sequence delay;
  emulate(graph, delay, source.layout, true, cycles, name);
  return start(prog, name, delay);
#endif
  (void)graph, (void)cycles;
  const Owners owners(source.layout, source.layout.shape());
  if (owners.unheld)
    throw std::runtime_error(label + ": no core holds a part of the tensor");
  const Tensor whole = Assembly{source, owners, Tensor()}.along(0).flatten();
  Sequence copy;
  copy.add(first);
  if (row.valid())
    copy.add(Copy(whole, buffer, row, {name}));
  else
    copy.add(Copy(whole, buffer, {name}));
  start(prog, name, copy);
}

} // namespace elk
