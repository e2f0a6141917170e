// A small implementation of the part of the Poplar API that elk-ir emits, for the host.
//
// It executes what a program says and knows nothing else. Every tile has a memory of its own; a
// variable's elements exist on the tiles to which they are mapped; copies move them between tiles;
// a vertex may only touch elements of its own tile. Poplar would insert an exchange in front of a
// compute set whose vertices are connected to other tiles' elements: here that is an error, so that
// a wrong tile mapping does not go unnoticed. Remote buffers and streams live on the host.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "Graph.hpp"

namespace poplar {
namespace lite {

enum class EventKind { Execute, Exchange, RemoteRead, RemoteWrite, Host };

// One step of the program as it ran, for a clock: cycles of the busiest tile (by
// setPerfEstimate), bytes that tiles received and sent (all, and those of the busiest tile).
struct Event {
  EventKind kind;
  const std::string &name;
  std::uint64_t cycles, bytes, mostIn, mostOut;
};

// Time of the events of a run, one after another, in cycles of a tile: a compute set takes its
// busiest vertex, an exchange two barriers and the busiest port. Written to the file that the
// environment variable ELK_TIMES names.
class VirtualClock {
public:
  void reset(double sync, double bytesIn, double bytesOut) {
    sync_ = sync, in_ = bytesIn, out_ = bytesOut, now_ = 0;
  }
  double cyclesOf(const Event &e) const {
    if (e.kind == EventKind::Execute)
      return static_cast<double>(e.cycles);
    const double in = in_ > 0 ? static_cast<double>(e.mostIn) / in_ : 0;
    const double out = out_ > 0 ? static_cast<double>(e.mostOut) / out_ : 0;
    return (e.kind == EventKind::Exchange ? 2 * sync_ : 0) + std::max(in, out);
  }
  void take(const Event &e) {
    static const char *const kinds[] = {"execute", "exchange", "read", "write", "host"};
    now_ += cyclesOf(e);
    const char *path = std::getenv("ELK_TIMES");
    if (std::FILE *file = path ? std::fopen(path, "a") : nullptr) {
      std::fprintf(file, "%s %.3f %s\n", kinds[static_cast<int>(e.kind)], cyclesOf(e), e.name.c_str());
      std::fclose(file);
    }
  }
  double now() const { return now_; }

private:
  double sync_ = 0, in_ = 0, out_ = 0, now_ = 0;
};

// Contiguous bytes of a tile's memory.
struct Run {
  unsigned tile;
  std::size_t address, bytes;
};

struct Machine;

struct Step {
  virtual ~Step() = default;
  virtual void run(Machine &machine) = 0;
};
using StepPtr = std::shared_ptr<Step>;

struct Machine {
  std::vector<std::vector<char>> tiles;
  std::map<std::string, std::vector<char>> remotes;
  std::map<std::string, std::pair<char *, char *>> streams;
  std::vector<std::pair<std::string, StepPtr>> queue;
  std::function<void(const Event &)> clock;
  // Started programs take effect at once, or, if this is set, as late as allowed.
  bool late = std::getenv("POPLAR_LITE_LATE") != nullptr;

  void load(Graph &graph, unsigned numTiles);
  std::vector<Run> runs(const Tensor &t) const;
  char *at(const Run &run) { return tiles[run.tile].data() + run.address; }

  std::vector<char> &remote(const std::string &handle) {
    const auto it = remotes.find(handle);
    if (it == remotes.end())
      throw poplar_error("there is no remote buffer " + handle);
    return it->second;
  }

  // Run everything in the queue up to `name`, or all of it.
  void land(const std::string *name) {
    bool there = !name;
    for (const auto &entry : queue)
      there = there || entry.first == *name;
    while (there && !queue.empty()) {
      const auto first = queue.front();
      queue.erase(queue.begin());
      first.second->run(*this);
      if (name && first.first == *name)
        return;
    }
  }

  void gather(const std::vector<Run> &from, char *to) {
    for (const Run &r : from) {
      std::memcpy(to, at(r), r.bytes);
      to += r.bytes;
    }
  }
  void scatter(const char *from, const std::vector<Run> &to) {
    for (const Run &r : to) {
      std::memcpy(at(r), from, r.bytes);
      from += r.bytes;
    }
  }

  void tell(EventKind kind, const std::string &name, const std::vector<Run> &out,
            const std::vector<Run> &in) const {
    if (!clock)
      return;
    std::vector<std::uint64_t> sent(tiles.size()), received(tiles.size());
    std::uint64_t bytes = 0;
    // What several tiles read of one element is sent once: all of them listen.
    std::vector<std::pair<std::pair<unsigned, std::size_t>, std::size_t>> distinct;
    for (const Run &r : out)
      distinct.push_back({{r.tile, r.address}, r.bytes});
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    for (const auto &r : distinct)
      sent[r.first.first] += r.second;
    for (const Run &r : in)
      received[r.tile] += r.bytes, bytes += r.bytes;
    clock({kind, name, 0, bytes, *std::max_element(received.begin(), received.end()),
           *std::max_element(sent.begin(), sent.end())});
  }
};

inline std::size_t bytesOf(const std::vector<Run> &runs) {
  std::size_t n = 0;
  for (const Run &r : runs)
    n += r.bytes;
  return n;
}

POPLAR_LITE_COLD void Machine::load(Graph &graph, unsigned numTiles) {
  std::size_t fixedEnd = 0;
  for (Variable &v : graph.variables) {
    std::sort(v.mapping.begin(), v.mapping.end(),
              [](const Placed &a, const Placed &b) { return a.begin < b.begin; });
    std::size_t next = 0;
    for (const Placed &p : v.mapping) {
      if (p.begin != next)
        throw poplar_error("variable " + v.name + ": element " + std::to_string(next) +
                           (p.begin < next ? " is mapped twice" : " is mapped to no tile"));
      next = p.end;
    }
    if (next != v.elements)
      throw poplar_error("variable " + v.name + ": element " + std::to_string(next) +
                         " is mapped to no tile");
  }
  std::vector<std::size_t> used(numTiles, 0);
  for (const bool fixed : {true, false}) {
    for (Variable &v : graph.variables) {
      if ((v.fixedAddress >= 0) != fixed)
        continue;
      std::map<unsigned, std::size_t> fill;
      for (Placed &p : v.mapping) {
        const std::size_t begin = fixed ? static_cast<std::size_t>(v.fixedAddress) : used[p.tile];
        std::size_t &at = fill.emplace(p.tile, begin).first->second;
        p.address = at;
        at += (p.end - p.begin) * v.type.bytes();
      }
      for (const auto &entry : fill) {
        if (fixed)
          fixedEnd = std::max(fixedEnd, entry.second);
        else
          used[entry.first] = (entry.second + 7) / 8 * 8;
      }
    }
    if (fixed)
      std::fill(used.begin(), used.end(), (fixedEnd + 7) / 8 * 8);
  }
  tiles.resize(numTiles);
  for (unsigned i = 0; i < numTiles; ++i)
    tiles[i].assign(used[i], 0);
  for (const RemoteNode &r : graph.remotes)
    remotes[r.handle].assign(r.rowElements * r.rows * r.type.bytes(), 0);
  for (Variable &v : graph.variables)
    if (!v.initial.empty())
      for (const Placed &p : v.mapping)
        std::memcpy(tiles[p.tile].data() + p.address, v.initial.data() + p.begin * v.type.bytes(),
                    (p.end - p.begin) * v.type.bytes());
}

POPLAR_LITE_COLD std::vector<Run> Machine::runs(const Tensor &t) const {
  std::vector<Run> found;
  for (const Region &r : t.regions()) {
    const Variable &v = *r.variable;
    const std::size_t size = v.type.bytes(), end = r.begin + r.count;
    auto it = std::upper_bound(v.mapping.begin(), v.mapping.end(), r.begin,
                               [](std::size_t x, const Placed &p) { return x < p.begin; });
    for (std::size_t i = r.begin; i < end; ++it) {
      const Placed &p = *(it - 1);
      const std::size_t n = std::min(end, p.end) - i;
      const Run run{p.tile, p.address + (i - p.begin) * size, n * size};
      if (!found.empty() && found.back().tile == run.tile &&
          found.back().address + found.back().bytes == run.address)
        found.back().bytes += run.bytes;
      else
        found.push_back(run);
      i += n;
    }
  }
  return found;
}

struct SequenceStep : Step {
  std::vector<StepPtr> steps;
  void run(Machine &machine) override {
    for (const StepPtr &step : steps)
      step->run(machine);
  }
};

struct RepeatStep : Step {
  unsigned count;
  StepPtr body;
  RepeatStep(unsigned count, StepPtr body) : count(count), body(std::move(body)) {}
  void run(Machine &machine) override {
    for (unsigned i = 0; i < count; ++i)
      body->run(machine);
  }
};

struct CopyStep : Step {
  Tensor source, target;
  std::string name;
  std::vector<Run> from, to;
  std::vector<char> bytes;
  CopyStep(Tensor s, Tensor t, std::string name)
      : source(std::move(s)), target(std::move(t)), name(std::move(name)) {
    if (source.shape() != target.shape())
      throw poplar_error("copy " + this->name + ": the shapes differ");
    if (source.elementType() != target.elementType())
      throw poplar_error("copy " + this->name + ": the types differ");
    // Poplar refuses to write an element twice in one copy.
    std::vector<std::pair<std::pair<Variable *, std::size_t>, std::size_t>> written;
    for (const Region &r : target.regions())
      written.push_back({{r.variable, r.begin}, r.count});
    std::sort(written.begin(), written.end());
    for (std::size_t i = 1; i < written.size(); ++i)
      if (written[i - 1].first.first == written[i].first.first &&
          written[i - 1].first.second + written[i - 1].second > written[i].first.second)
        throw poplar_error("copy " + this->name + " writes an element twice");
  }
  void run(Machine &machine) override {
    if (from.empty()) {
      from = machine.runs(source), to = machine.runs(target);
      bytes.resize(bytesOf(from));
    }
    machine.gather(from, bytes.data());
    machine.scatter(bytes.data(), to);
    machine.tell(EventKind::Exchange, name, from, to);
  }
};

struct RemoteStep : Step {
  RemoteNode *remote;
  Tensor tensor, rows;
  bool read;
  std::string name;
  RemoteStep(RemoteNode *remote, Tensor tensor, Tensor rows, bool read, std::string name)
      : remote(remote), tensor(std::move(tensor)), rows(std::move(rows)), read(read),
        name(std::move(name)) {
    const std::size_t n = this->rows.valid() ? this->rows.numElements() : 1;
    if (this->tensor.numElements() != n * remote->rowElements)
      throw poplar_error("remote buffer " + remote->handle + ": " + std::to_string(n) +
                         " rows do not match the tensor");
    if (this->tensor.elementType() != remote->type)
      throw poplar_error("remote buffer " + remote->handle + ": the types differ");
  }
  void run(Machine &machine) override {
    std::vector<char> &buffer = machine.remote(remote->handle);
    const std::vector<Run> on = machine.runs(tensor);
    std::vector<unsigned> index(rows.valid() ? rows.numElements() : 1, 0u);
    if (rows.valid())
      machine.gather(machine.runs(rows), reinterpret_cast<char *>(index.data()));
    const std::size_t row = remote->rowElements * remote->type.bytes();
    std::vector<char> bytes(row * index.size());
    if (!read)
      machine.gather(on, bytes.data());
    for (std::size_t i = 0; i < index.size(); ++i) {
      if (index[i] >= remote->rows)
        throw poplar_error(name + ": remote buffer " + remote->handle + " has no row " +
                           std::to_string(index[i]) + " of " + std::to_string(remote->rows));
      char *there = buffer.data() + index[i] * row, *here = bytes.data() + i * row;
      std::memcpy(read ? here : there, read ? there : here, row);
    }
    if (read)
      machine.scatter(bytes.data(), on);
    machine.tell(read ? EventKind::RemoteRead : EventKind::RemoteWrite, name,
                 read ? std::vector<Run>() : on, read ? on : std::vector<Run>());
  }
};

struct StreamStep : Step {
  StreamNode *stream;
  Tensor tensor;
  bool in;
  StreamStep(StreamNode *stream, Tensor tensor, bool in)
      : stream(stream), tensor(std::move(tensor)), in(in) {
    if (this->tensor.numElements() != stream->elements ||
        this->tensor.elementType() != stream->type)
      throw poplar_error("stream " + stream->handle + " does not match the tensor");
  }
  void run(Machine &machine) override {
    const auto host = machine.streams.find(stream->handle);
    const std::vector<Run> on = machine.runs(tensor);
    if (host == machine.streams.end() ||
        host->second.second - host->second.first < static_cast<std::ptrdiff_t>(bytesOf(on)))
      throw poplar_error("stream " + stream->handle + " is not connected to enough bytes");
    if (in)
      machine.scatter(host->second.first, on);
    else
      machine.gather(on, host->second.first);
    machine.tell(EventKind::Host, stream->handle, {}, on);
  }
};

struct ExecuteStep : Step {
  struct Instance {
    const VertexInfo *info;
    std::vector<std::uint64_t> object;
  };
  ComputeSetNode *set;
  std::vector<Instance> instances;
  std::uint64_t cycles = 0;

  explicit ExecuteStep(ComputeSetNode *set) : set(set) {}
  void run(Machine &machine) override {
    if (instances.empty())
      prepare(machine);
    for (Instance &i : instances)
      i.info->compute(i.object.data());
    if (machine.clock)
      machine.clock({EventKind::Execute, set->name, cycles, 0, 0, 0});
  }

private:
  void prepare(Machine &machine);
  void fill(Machine &machine, const VertexNode &v, const FieldInfo &field, char *object);
};

POPLAR_LITE_COLD void ExecuteStep::prepare(Machine &machine) {
  std::map<unsigned, std::uint64_t> busy;
  for (const VertexNode &v : set->vertices) {
    if (v.tile == ~0u)
      throw poplar_error("a vertex of " + set->name + " is mapped to no tile");
    instances.push_back({v.info, std::vector<std::uint64_t>(v.info->bytes / 8 + 1)});
    for (const FieldInfo &field : v.info->list())
      fill(machine, v, field, reinterpret_cast<char *>(instances.back().object.data()));
    cycles = std::max(cycles, busy[v.tile] += v.cycles);
  }
}

POPLAR_LITE_COLD void ExecuteStep::fill(Machine &machine, const VertexNode &v,
                                        const FieldInfo &field, char *object) {
  const std::string what = "compute set " + set->name + ": " + v.info->name + "." + field.name;
  if (field.kind == FieldKind::Value) {
    const auto value = v.values.find(field.name);
    if (value == v.values.end())
      throw poplar_error(what + " has no initial value");
    std::memcpy(object + field.offset, value->second.data(), value->second.size());
    return;
  }
  for (const Connection &edge : v.edges) {
    if (edge.field != field.name)
      continue;
    if (edge.tensor.elementType() != field.type)
      throw poplar_error(what + " is of type " + field.type.toString() + ", the tensor " +
                         edge.tensor.elementType().toString());
    const std::vector<Run> runs = machine.runs(edge.tensor);
    for (const Run &r : runs)
      if (r.tile != v.tile)
        throw poplar_error(what + " on tile " + std::to_string(v.tile) +
                           " is connected to elements on tile " + std::to_string(r.tile));
    if (runs.size() > 1)
      throw poplar_error(what + " is connected to elements that are not contiguous");
    if (!field.vector && edge.tensor.numElements() != 1)
      throw poplar_error(what + " takes one element");
    const Edge filled{runs.empty() ? nullptr : machine.at(runs[0]), edge.tensor.numElements()};
    std::memcpy(object + field.offset, &filled, sizeof filled);
    return;
  }
  throw poplar_error(what + " is not connected");
}

struct StartStep : Step {
  std::string name;
  StepPtr body;
  StartStep(std::string name, StepPtr body) : name(std::move(name)), body(std::move(body)) {}
  void run(Machine &machine) override {
    if (machine.late)
      machine.queue.push_back({name, body});
    else
      body->run(machine);
  }
};

struct WaitStep : Step {
  std::string name;
  explicit WaitStep(std::string name) : name(std::move(name)) {}
  void run(Machine &machine) override { machine.land(&name); }
};

} // namespace lite
} // namespace poplar
