// Programs: sequences of compute sets and copies.
#pragma once
#include <memory>

#include "Graph.hpp"
#include "Lite.hpp"

namespace poplar {
namespace program {

class Program {
public:
  std::shared_ptr<lite::Step> step;
};

class Sequence : public Program {
public:
  Sequence() { step = std::make_shared<lite::SequenceStep>(); }
  void add(const Program &program) {
    static_cast<lite::SequenceStep &>(*step).steps.push_back(program.step);
  }
};

class Repeat : public Program {
public:
  Repeat(unsigned count, const Program &body, const DebugContext & = {}) {
    step = std::make_shared<lite::RepeatStep>(count, body.step);
  }
};

class Execute : public Program {
public:
  Execute(ComputeSet cs, const DebugContext & = {}) {
    step = std::make_shared<lite::ExecuteStep>(cs.node);
  }
};

class Copy : public Program {
public:
  // Between tensors of the same shape: an exchange.
  Copy(const Tensor &source, const Tensor &target, bool dontOutline = false,
       const DebugContext &name = {}) {
    (void)dontOutline;
    if (source.shape() != target.shape())
      throw poplar_error("copy " + name.name + ": the shapes differ");
    step = std::make_shared<lite::CopyStep>(source, target, name.name);
  }
  // From and to rows of a remote buffer: the rows that `rows` holds, or the only one.
  Copy(RemoteBuffer buffer, const Tensor &t, const DebugContext &name = {}) {
    step = std::make_shared<lite::RemoteStep>(buffer.node, t, Tensor(), true, name.name);
  }
  Copy(RemoteBuffer buffer, const Tensor &t, const Tensor &rows, const DebugContext &name = {}) {
    step = std::make_shared<lite::RemoteStep>(buffer.node, t, rows, true, name.name);
  }
  Copy(const Tensor &t, RemoteBuffer buffer, const DebugContext &name = {}) {
    step = std::make_shared<lite::RemoteStep>(buffer.node, t, Tensor(), false, name.name);
  }
  Copy(const Tensor &t, RemoteBuffer buffer, const Tensor &rows, const DebugContext &name = {}) {
    step = std::make_shared<lite::RemoteStep>(buffer.node, t, rows, false, name.name);
  }
  // From and to the host.
  Copy(DataStream stream, const Tensor &t, const DebugContext & = {}) {
    step = std::make_shared<lite::StreamStep>(stream.node, t, true);
  }
  Copy(const Tensor &t, DataStream stream, const DebugContext & = {}) {
    step = std::make_shared<lite::StreamStep>(stream.node, t, false);
  }
};

} // namespace program

namespace lite {

// Two steps that Poplar does not have: a program (copies from or to remote buffers) that runs
// beside what follows, and the wait for it. Started programs complete in order.
class Start : public program::Program {
public:
  Start(const std::string &name, const program::Program &body) {
    step = std::make_shared<StartStep>(name, body.step);
  }
};

class Wait : public program::Program {
public:
  explicit Wait(const std::string &name) { step = std::make_shared<WaitStep>(name); }
};

// Puts a tensor's elements at a byte address of each of their tiles' memories, where Poplar would
// choose one. Variables may share bytes.
inline void setAddress(const Tensor &t, std::size_t address) {
  for (const Region &r : t.regions())
    r.variable->fixedAddress = static_cast<std::ptrdiff_t>(address);
}

} // namespace lite
} // namespace poplar
