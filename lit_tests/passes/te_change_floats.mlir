// RUN: elk-opt %s -p 'te-change-floats{to=f16}' | filecheck %s
// RUN: elk-opt %s -p 'te-change-floats{to=bf16}' | filecheck %s --check-prefix=BF

// CHECK: builtin.module attributes {te.floats = "f16"}
// BF: builtin.module attributes {te.floats = "bf16"}

// A layer: a product of narrow tensors with its sum in float32, a norm, a residual. The input is
// cast on entry (finite numbers saturate), the output is written as float32.
// CHECK: te.global weight @w stack 2 : tensor<8x4xf16> = {{.*}}tensor<8x4xf32>{{.*}}, ["saturate f16", "stack"]>
// CHECK: te.global weight @o : tensor<4x8xf16> = {{.*}}["transpose 1 0", "saturate f16"]>
// CHECK: te.global weight @g : tensor<8xf16>
// BF: te.global weight @w stack 2 : tensor<8x4xbf16> = {{.*}}["saturate bf16", "stack"]>
// CHECK-LABEL: func.func @layers(%x: tensor<2x8xf32>) -> (tensor<2x8xf32>, tensor<2x8xf32>)
// CHECK: %x_f16 = te.map(%x) {{.*}}t0 = const(-65504.0 : "float32"), t1 = const(65504.0 : "float32"), t2 = max(x0, t0), t3 = min(t2, t1), t4 = isinf(x0), t5 = select(t4, x0, t3), t6 = cast(t5 : "float16")} -> (t6)>} : (tensor<2x8xf32>) -> tensor<2x8xf16>
// BF: %x_bf16 = te.map(%x) {{.*}}const(-3.3895313892515355e+38 : "float32"){{.*}}-> tensor<2x8xbf16>
// CHECK: te.repeat 2 iter(%x_f16)
// CHECK: ^bb0(%l: index, %h: tensor<2x8xf16>)
// CHECK: te.load @w[%l] : tensor<8x4xf16>
// CHECK: te.normalize{{.*}} : (tensor<2x8xf16>, tensor<8xf16>) -> tensor<2x8xf16>
// CHECK: te.contract{{.*}} : (tensor<2x8xf16>, tensor<8x4xf16>) -> tensor<2x4xf16>
// CHECK: epilogue = #te.body<(x0, x1) {t0 = cast(x1 : "float32"), t1 = add(t0, x0), t2 = cast(t1 : "float16")} -> (t2)>
// CHECK: te.yield %y : tensor<2x8xf16>
// CHECK: %r_f32 = te.map(%r) {{.*}}cast(x0 : "float32"){{.*}} : (tensor<2x8xf16>) -> tensor<2x8xf32>
// CHECK: %s = te.softmax(%r) {{.*}} : (tensor<2x8xf16>) -> tensor<2x8xf32>
// CHECK: func.return %r_f32, %s
te.global weight @w stack 2 : tensor<8x4xf32> = #te.weight<[<"w.0" : tensor<8x4xf32>, "w.bin", 0, 128, "">, <"w.1" : tensor<8x4xf32>, "w.bin", 128, 128, "">], ["stack"]>
te.global weight @o : tensor<4x8xf32> = #te.weight<[<"o" : tensor<8x4xf32>, "w.bin", 256, 128, "">], ["transpose 1 0"]>
te.global weight @g : tensor<8xf32> = dense<1.5> : tensor<8xf32>
func.func @layers(%x: tensor<2x8xf32>) -> (tensor<2x8xf32>, tensor<2x8xf32>) {
  %g = te.load @g : tensor<8xf32>
  %o = te.load @o : tensor<4x8xf32>
  %r = te.repeat 2 iter(%x) {
  ^bb0(%l: index, %h: tensor<2x8xf32>):
    %w = te.load @w[%l] : tensor<8x4xf32>
    %n = te.normalize(%h, %g) <(m = 2, k = 8 reduce), [(m, k), (k)] -> [(m, k)]> {form = #te<norm_form rms>, epsilon = 1.0e-5 : f64, affine = "scale"} : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
    %p = te.contract(%n, %w) <(m = 2, n = 4, k = 8 reduce), [(m, k), (k, n)] -> [(m, n)]> : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
    %y = te.contract(%p, %o, %h) <(m = 2, n = 8, k = 4 reduce), [(m, k), (k, n), (m, n)] -> [(m, n)]> {epilogue = #te.body<(x0, x1) {t0 = add(x1, x0)} -> (t0)>} : (tensor<2x4xf32>, tensor<4x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
    te.yield %y : tensor<2x8xf32>
  } : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %s = te.softmax(%r) <(m = 2, k = 8 reduce), [(m, k)] -> [(m, k)]> : (tensor<2x8xf32>) -> tensor<2x8xf32>
  func.return %r, %s : tensor<2x8xf32>, tensor<2x8xf32>
}

// Angles are positions times frequencies: all of it stays float32, cosine and sine are narrow. A
// weight that is read both ways is there twice.
// CHECK: te.global weight @f : tensor<4xf32>
// CHECK-LABEL: func.func @rotary
// CHECK: %c = te.map{{.*}} -> tensor<2xf32>
// CHECK: %a = te.contract(%c, %f) {{.*}} : (tensor<2xf32>, tensor<4xf32>) -> tensor<2x4xf32>
// CHECK: %cos = te.map(%a) {{.*}}{t0 = cos(x0), t1 = cast(t0 : "float16")} -> (t1)>} : (tensor<2x4xf32>) -> tensor<2x4xf16>
// CHECK: te.load @f.f16 : tensor<4xf16>
// CHECK: t2 = mul(t0, t1){{.*}} : (tensor<2x4xf16>, tensor<4xf16>, tensor<2x4xf16>) -> tensor<2x4xi1>
te.global weight @f : tensor<4xf32> = dense<[1.0, 0.1, 0.01, 0.001]> : tensor<4xf32>
func.func @rotary(%p: tensor<2xi64>, %x: tensor<2x4xf16>) -> tensor<2x4xi1> {
  %f = te.load @f : tensor<4xf32>
  %c = te.map(%p) <(b = 2), [(b)] -> [(b)]> {body = #te.body<(x0) {t0 = cast(x0 : "float32")} -> (t0)>} : (tensor<2xi64>) -> tensor<2xf32>
  %a = te.contract(%c, %f) <(b = 2, d = 4), [(b), (d)] -> [(b, d)]> : (tensor<2xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %cos = te.map(%a) <(b = 2, d = 4), [(b, d)] -> [(b, d)]> {body = #te.body<(x0) {t0 = cos(x0)} -> (t0)>} : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %h = te.load @f : tensor<4xf32>
  %y = te.map(%cos, %h, %x) <(b = 2, d = 4), [(b, d), (d), (b, d)] -> [(b, d)]> {body = #te.body<(x0, x1, x2) {t0 = mul(x0, x1), t1 = cast(x2 : "float32"), t2 = lt(t0, t1)} -> (t2)>} : (tensor<2x4xf32>, tensor<4xf32>, tensor<2x4xf16>) -> tensor<2x4xi1>
  func.return %y : tensor<2x4xi1>
}

// Masks: a number that fp16 lacks becomes its largest, wherever it is; -inf stays.
// CHECK: te.global weight @low : tensor<2xf16> = dense<[-6.550400e+04, 0.000000e+00]>
// CHECK-LABEL: func.func @masks
// CHECK: %s = te.map{{.*}}t1 = const("-inf" : "float32"), t2 = const(-65504.0 : "float32"), t3 = select(x0, t0, t2), t4 = select(x0, t3, t1), t5 = cast(t4 : "float16")
// CHECK: %t = te.map{{.*}}t3 = mul(t1, t2), t4 = add(t3, t0), t5 = const(-65504.0 : "float32"), t6 = const(65504.0 : "float32"), t7 = max(t4, t5), t8 = min(t7, t6), t9 = cast(t8 : "float16")
// CHECK: %c = te.map(%t) {{.*}}{t0 = cast(x0 : "float32"), t1 = const(-65504.0 : "float32"), t2 = eq(t0, t1)}
// CHECK: te.contract{{.*}}t3 = add(t2, t1), t4 = const(-65504.0 : "float32"), {{.*}}t8 = cast(t7 : "float16")
// CHECK: te.softmax{{.*}} : (tensor<2x4xf16>) -> tensor<2x4xf32>
te.global weight @low : tensor<2xf32> = dense<[-3.40282347E+38, 0.0]> : tensor<2xf32>
func.func @masks(%m: tensor<2x4xi1>, %i: tensor<2x4xi64>, %q: tensor<2x3xf16>, %k: tensor<4x3xf16>) -> (tensor<2x4xf32>, tensor<2x4xi1>) {
  %low = te.load @low : tensor<2xf32>
  %s = te.map(%m) <(a = 2, b = 4), [(a, b)] -> [(a, b)]> {body = #te.body<(x0) {t0 = const(0.0 : "float32"), t1 = const(-3.40282347E+38 : "float32"), t2 = const("-inf" : "float32"), t3 = select(x0, t0, t1), t4 = select(x0, t3, t2)} -> (t4)>} : (tensor<2x4xi1>) -> tensor<2x4xf32>
  %t = te.map(%i, %low) <(a = 2, b = 4), [(a, b), (a)] -> [(a, b)]> {body = #te.body<(x0, x1) {t0 = cast(x0 : "float32"), t1 = const(-1.0e9 : "float32"), t2 = mul(t0, t1), t3 = add(t2, x1)} -> (t3)>} : (tensor<2x4xi64>, tensor<2xf32>) -> tensor<2x4xf32>
  %c = te.map(%t) <(a = 2, b = 4), [(a, b)] -> [(a, b)]> {body = #te.body<(x0) {t0 = const(-1.0e9 : "float32"), t1 = eq(x0, t0)} -> (t1)>} : (tensor<2x4xf32>) -> tensor<2x4xi1>
  %p = te.contract(%q, %k, %t, %s) <(a = 2, b = 4, k = 3 reduce), [(a, k), (b, k), (a, b), (a, b)] -> [(a, b)]> {epilogue = #te.body<(x0, x1, x2) {t0 = add(x0, x1), t1 = add(t0, x2)} -> (t1)>} : (tensor<2x3xf16>, tensor<4x3xf16>, tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %y = te.softmax(%p) <(a = 2, b = 4 reduce), [(a, b)] -> [(a, b)]> : (tensor<2x4xf32>) -> tensor<2x4xf32>
  func.return %y, %c : tensor<2x4xf32>, tensor<2x4xi1>
}

// States are narrow in HBM; what is appended comes narrow from where it is made.
// CHECK: te.global state @kv : tensor<1x4x8xf16> {axis = 1 : i64, length = 3 : i64, inputs = ["k"], outputs = ["l"], steps = dense<1.000000e+00> : tensor<1xf32>}
// CHECK: te.global state @fixed : tensor<1x4x8xf16>
// CHECK-LABEL: func.func @state
// CHECK: te.append %x_f16 to @kv : tensor<1x1x8xf16> -> tensor<1x4x8xf16>
// CHECK: te.load @fixed : tensor<1x4x8xf16>
// CHECK: te.update %x_f16 to @fixed rows %at : tensor<1x1x8xf16>, tensor<1xi64>
// CHECK: te.map{{.*}} : (tensor<1x4x8xf16>, tensor<1x4x8xf16>) -> tensor<1x4x8xf32>
te.global state @kv : tensor<1x4x8xf32> {axis = 1 : i64, length = 3 : i64, inputs = ["k"], outputs = ["l"]}
te.global state @fixed : tensor<1x4x8xf32> {axis = 1 : i64, length = 4 : i64, inputs = ["f"], outputs = ["g"]}
func.func @state(%x: tensor<1x1x8xf32>, %at: tensor<1xi64>) -> tensor<1x4x8xf32> {
  %all = te.append %x to @kv : tensor<1x1x8xf32> -> tensor<1x4x8xf32>
  %old = te.load @fixed : tensor<1x4x8xf32>
  te.update %x to @fixed rows %at : tensor<1x1x8xf32>, tensor<1xi64>
  %y = te.map(%all, %old) <(a = 4, b = 8), [(0, a, b), (0, a, b)] -> [(0, a, b)]> {body = #te.body<(x0, x1) {t0 = add(x0, x1)} -> (t0)>} : (tensor<1x4x8xf32>, tensor<1x4x8xf32>) -> tensor<1x4x8xf32>
  func.return %y : tensor<1x4x8xf32>
}

// Operators that move elements have one type; an index is computed as it was; steps of integers stay.
// CHECK: te.global weight @steps : tensor<4xf32>
// CHECK: te.global weight @f.f16 : tensor<4xf16>
// CHECK-LABEL: func.func @others
// CHECK: %c = te.map(%n) {{.*}} -> tensor<4xf32>
// CHECK: %c_f16 = te.map(%c) {{.*}} -> tensor<4xf16>
// CHECK: te.concat(%c_f16, %x_f16) {{.*}} -> tensor<8xf16>
// CHECK: %h = te.map(%c) {{.*}} : (tensor<4xf32>) -> tensor<4xf32>
// CHECK: %i = te.map(%h) {{.*}}floor(x0){{.*}} : (tensor<4xf32>) -> tensor<4xi64>
// CHECK: te.contract{{.*}}t1 = mul(t0, x1), t2 = cast(t1 : "float16")} -> (t2)>} : (tensor<2x8xi8>, tensor<8x4xi8>, tensor<4xf32>) -> tensor<2x4xf16>
te.global weight @steps : tensor<4xf32> = dense<1.0e-6> : tensor<4xf32>
func.func @others(%n: tensor<4xi64>, %x: tensor<4xf32>, %q: tensor<2x8xi8>, %w: tensor<8x4xi8>) -> (tensor<8xf32>, tensor<4xi64>, tensor<2x4xf32>) {
  %c = te.map(%n) <(a = 4), [(a)] -> [(a)]> {body = #te.body<(x0) {t0 = cast(x0 : "float32")} -> (t0)>} : (tensor<4xi64>) -> tensor<4xf32>
  %y = te.concat(%c, %x) <(a = 8), [(a), (a - 4)] -> [(a)]> {dim = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
  %h = te.map(%c) <(a = 4), [(a)] -> [(a)]> {body = #te.body<(x0) {t0 = const(0.5 : "float32"), t1 = mul(x0, t0)} -> (t1)>} : (tensor<4xf32>) -> tensor<4xf32>
  %i = te.map(%h) <(a = 4), [(a)] -> [(a)]> {body = #te.body<(x0) {t0 = floor(x0), t1 = cast(t0 : "int64")} -> (t1)>} : (tensor<4xf32>) -> tensor<4xi64>
  %s = te.load @steps : tensor<4xf32>
  %p = te.contract(%q, %w, %s) <(m = 2, n = 4, k = 8 reduce), [(m, k), (k, n), (n)] -> [(m, n)]> {epilogue = #te.body<(x0, x1) {t0 = cast(x0 : "float32"), t1 = mul(t0, x1)} -> (t1)>} : (tensor<2x8xi8>, tensor<8x4xi8>, tensor<4xf32>) -> tensor<2x4xf32>
  %z = te.map(%p) <(a = 2, b = 4), [(a, b)] -> [(a, b)]> {body = #te.body<(x0) {t0 = tanh(x0)} -> (t0)>} : (tensor<2x4xf32>) -> tensor<2x4xf32>
  func.return %y, %i, %z : tensor<8xf32>, tensor<4xi64>, tensor<2x4xf32>
}
