// Programs: sequences of compute sets and copies.
#pragma once
#include <memory>

#include "Graph.hpp"
#include "Lite.hpp"

namespace poplar {
namespace program {

class Program {
public:
  Program() = default;
  explicit Program(std::shared_ptr<lite::Step> step);
  Program(const Program &);
  ~Program();
  std::shared_ptr<lite::Step> step;
};

class Sequence : public Program {
public:
  Sequence();
  void add(const Program &program);
};

class Repeat : public Program {
public:
  Repeat(unsigned count, const Program &body, const DebugContext & = {});
};

class Execute : public Program {
public:
  Execute(ComputeSet cs, const DebugContext & = {});
};

class Copy : public Program {
public:
  // Between tensors of the same shape: an exchange.
  Copy(const Tensor &source, const Tensor &target, bool dontOutline = false,
       const DebugContext &name = {});
  // From and to rows of a remote buffer: the rows that `rows` holds, or the only one.
  Copy(RemoteBuffer buffer, const Tensor &t, const DebugContext &name = {});
  Copy(RemoteBuffer buffer, const Tensor &t, const Tensor &rows, const DebugContext &name = {});
  Copy(const Tensor &t, RemoteBuffer buffer, const DebugContext &name = {});
  Copy(const Tensor &t, RemoteBuffer buffer, const Tensor &rows, const DebugContext &name = {});
  // From and to the host.
  Copy(DataStream stream, const Tensor &t, const DebugContext & = {});
  Copy(const Tensor &t, DataStream stream, const DebugContext & = {});
};

POPLAR_LITE_COLD Program::Program(std::shared_ptr<lite::Step> step) : step(std::move(step)) {}
POPLAR_LITE_COLD Program::Program(const Program &) = default;
POPLAR_LITE_COLD Program::~Program() = default;

POPLAR_LITE_COLD Sequence::Sequence() : Program(std::make_shared<lite::SequenceStep>()) {}
POPLAR_LITE_COLD void Sequence::add(const Program &program) {
  static_cast<lite::SequenceStep &>(*step).steps.push_back(program.step);
}

POPLAR_LITE_COLD Repeat::Repeat(unsigned count, const Program &body, const DebugContext &)
    : Program(std::make_shared<lite::RepeatStep>(count, body.step)) {}

POPLAR_LITE_COLD Execute::Execute(ComputeSet cs, const DebugContext &)
    : Program(std::make_shared<lite::ExecuteStep>(cs.node)) {}

POPLAR_LITE_COLD Copy::Copy(const Tensor &source, const Tensor &target, bool,
                            const DebugContext &name)
    : Program(std::make_shared<lite::CopyStep>(source, target, name.name)) {}
POPLAR_LITE_COLD Copy::Copy(RemoteBuffer buffer, const Tensor &t, const DebugContext &name)
    : Program(std::make_shared<lite::RemoteStep>(buffer.node, t, Tensor(), true, name.name)) {}
POPLAR_LITE_COLD Copy::Copy(RemoteBuffer buffer, const Tensor &t, const Tensor &rows,
                            const DebugContext &name)
    : Program(std::make_shared<lite::RemoteStep>(buffer.node, t, rows, true, name.name)) {}
POPLAR_LITE_COLD Copy::Copy(const Tensor &t, RemoteBuffer buffer, const DebugContext &name)
    : Program(std::make_shared<lite::RemoteStep>(buffer.node, t, Tensor(), false, name.name)) {}
POPLAR_LITE_COLD Copy::Copy(const Tensor &t, RemoteBuffer buffer, const Tensor &rows,
                            const DebugContext &name)
    : Program(std::make_shared<lite::RemoteStep>(buffer.node, t, rows, false, name.name)) {}
POPLAR_LITE_COLD Copy::Copy(DataStream stream, const Tensor &t, const DebugContext &)
    : Program(std::make_shared<lite::StreamStep>(stream.node, t, true)) {}
POPLAR_LITE_COLD Copy::Copy(const Tensor &t, DataStream stream, const DebugContext &)
    : Program(std::make_shared<lite::StreamStep>(stream.node, t, false)) {}

} // namespace program

namespace lite {

// Two steps that Poplar does not have: a program (copies from or to remote buffers) that runs
// beside what follows, and the wait for it. Started programs complete in order.
class Start : public program::Program {
public:
  Start(const std::string &name, const program::Program &body)
      : Program(std::make_shared<StartStep>(name, body.step)) {}
};

class Wait : public program::Program {
public:
  explicit Wait(const std::string &name) : Program(std::make_shared<WaitStep>(name)) {}
};

// Puts a tensor's elements at a byte address of each of their tiles' memories, where Poplar would
// choose one. Variables may share bytes.
inline void setAddress(const Tensor &t, std::size_t address) {
  for (const Region &r : t.regions())
    r.variable->fixedAddress = static_cast<std::ptrdiff_t>(address);
}

} // namespace lite
} // namespace poplar
