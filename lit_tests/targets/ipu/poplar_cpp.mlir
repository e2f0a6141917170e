// A ring, a scattered reduction and a preload beside an execute as a Poplar program. The whole text is
// compiled and run in tests/test_poplar_cpp.py; here is what a reader should find in it.
//
// RUN: elk-opt %s -p 'convert-te-to-icca{chip=test-16},icca-set-plan{op="/model/q:0" grid="m=2,n=2,k=2" exec="1:k=2" preload="1:k=2" scatter=n},icca-set-plan{op=o grid="m=1,n=8,k=2" exec="0:k=2" preload="1:n=1" scatter=n},icca-set-plan{op=norm grid="m=2,k=4"},icca-schedule{policy=basic plans=keep},icca-allocate,convert-icca-to-ipu' -t poplar-cpp | filecheck %s
// RUN: not elk-opt %s -t poplar-cpp 2>&1 | filecheck %s --check-prefix=ERROR

te.global weight @g : tensor<64xf32> = dense<1.0> : tensor<64xf32>
te.global weight @wq : tensor<64x64xf32> = dense<0.5> : tensor<64x64xf32>
te.global weight @wo : tensor<64x32xf32> = dense<0.25> : tensor<64x32xf32>

func.func @main(%h: tensor<2x64xf32> {onnx.name = "h"}) -> (tensor<2x32xf32> {onnx.name = "y"}) {
  %g = te.load @g : tensor<64xf32>
  %n = te.normalize(%h, %g) <(m = 2, k = 64 reduce), [(m, k), (k)] -> [(m, k)]> {form = #te<norm_form rms>, epsilon = 1.0e-5 : f64, affine = "scale"} : (tensor<2x64xf32>, tensor<64xf32>) -> tensor<2x64xf32> loc("norm")
  %wq = te.load @wq : tensor<64x64xf32>
  %q = te.contract(%n, %wq) <(m = 2, n = 64, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x64xf32>, tensor<64x64xf32>) -> tensor<2x64xf32> loc("/model/q:0")
  %wo = te.load @wo : tensor<64x32xf32>
  %o = te.contract(%q, %wo) <(m = 2, n = 32, k = 64 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x64xf32>, tensor<64x32xf32>) -> tensor<2x32xf32> loc("o")
  func.return %o : tensor<2x32xf32>
}

// Codelets: the valid points of a box, divided among the worker threads.
// CHECK: #if defined(__POPC__) || defined(POPLAR_LITE)
// CHECK: // _model_q_0: contract (m = 2, n = 64, k = 64), local
// CHECK-NEXT: class model_q_0_local : public MultiVertex {
// CHECK-NEXT: public:
// CHECK-NEXT:   Input<Vector<float>> x0;
// CHECK-NEXT:   Input<Vector<float>> x1;
// CHECK-NEXT:   InOut<Vector<float>> a0;
// CHECK-NEXT:   int n0, n1, n2, s1, s2;
// CHECK-NEXT:   bool compute(unsigned workerId) {
// CHECK:      for (int i2 = 0; i2 < n2; ++i2) {
// CHECK-NEXT:   sum += x0[i0 * s2 + i2] * x1[i2 * s1 + i1];
// CHECK:      a0[i0 * s1 + i1] += sum;

// Layouts are functions of the core's number: neighbours that share a block, blocks, their size.
// CHECK: constexpr elk::Layout
// CHECK-NEXT: L0 = {8, 2, {{[{][{]}}2, {elk::blocks<4, 2>}}, {{[{]}}64, {elk::blocks<1, 4, 16>}}}},

// Variables with their layouts and addresses, and HBM.
// CHECK: struct Model {
// CHECK: // /model/q:0
// CHECK-NEXT: elk::Variable model_q_0_preload1{graph, FLOAT, {{L[0-9]+}}, "_model_q_0.preload1", {{[0-9]+}}};
// CHECK: // weight, tensor<64x64xf32>
// CHECK-NEXT: wq = graph.addRemoteBuffer("wq", FLOAT, 4096);

// The product: the next operator's weight starts, the ring's first step, a shift, the last step.
// CHECK: // /model/q:0: contract
// CHECK-NEXT: void run_model_q_0(Sequence &prog) {
// CHECK-NEXT:   elk::preload(graph, prog, wo,
// CHECK:   elk::reshard(prog, norm_result0, model_q_0_execute0);
// CHECK:   elk::wait(prog, "_model_q_0.preload1");
// CHECK:   elk::fill<float>(graph, prog, model_q_0_partial0, "Fill_float32", 0.0f);
// CHECK:   for (long t = 0; t < 1; ++t) {
// CHECK:     ComputeSet cs = graph.addComputeSet("_model_q_0.local");
// CHECK:     for (unsigned c = 0; c < 8; ++c) {
// CHECK:       VertexRef v = graph.addVertex(cs, "model_q_0_local");
// CHECK-NEXT:  graph.connect(v["x0"], model_q_0_execute0.block(c
// CHECK:       graph.setPerfEstimate(v, {{[0-9]+}});
// CHECK-NEXT:  graph.setTileMapping(v, c);
// CHECK:     prog.add(Execute(cs));
// CHECK:   elk::shift(prog, model_q_0_preload1,
// CHECK:   elk::localCopy(prog, model_q_0_landing1, model_q_0_preload1,
// CHECK:   graph.addComputeSet("_model_q_0.local#2");
// CHECK:   elk::combine(graph, prog, model_q_0_partial0, model_q_0_gathered0, model_q_0_merged0,
// CHECK-NEXT: "model_q_0_combine", {{L[0-9]+}}, "n0 n1 s0 s1", {{[0-9]+}});

// Streams of the host around it.
// CHECK: DataStream fifo = graph.addHostToDeviceFIFO("h", FLOAT, 128);
// CHECK: DataStream fifo = graph.addDeviceToHostFIFO("y", FLOAT, 64);
// CHECK: int main(int argc, char **argv) {
// CHECK: weights.toRemote(engine, "wq", 16384, 1);
// CHECK: inputs.toStream(engine, "h", 512);
// CHECK: engine.run(1);

// ERROR: the module has no ipu.program
