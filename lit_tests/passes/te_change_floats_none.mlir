// RUN: elk-opt %s -p 'te-change-floats{to=bf16}' | filecheck %s

// Only float32 is changed: a module of fp16, whose angles are float32, stays what it is.
// CHECK: builtin.module {
// CHECK: te.map(%p) {{.*}} : (tensor<2xi64>) -> tensor<2xf32>
// CHECK: te.map(%a) {{.*}} : (tensor<2xf32>) -> tensor<2xf16>
func.func @main(%p: tensor<2xi64>) -> tensor<2xf16> {
  %a = te.map(%p) <(b = 2), [(b)] -> [(b)]> {body = #te.body<(x0) {t0 = cast(x0 : "float32")} -> (t0)>} : (tensor<2xi64>) -> tensor<2xf32>
  %y = te.map(%a) <(b = 2), [(b)] -> [(b)]> {body = #te.body<(x0) {t0 = sin(x0), t1 = cast(t0 : "float16")} -> (t1)>} : (tensor<2xf32>) -> tensor<2xf16>
  func.return %y : tensor<2xf16>
}
