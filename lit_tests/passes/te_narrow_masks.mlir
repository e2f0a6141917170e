// RUN: elk-opt %s -p te-narrow-masks | filecheck %s

// `any` of a comparison, as exporters spell it: the mask is not made of int64.
// CHECK-LABEL: @any
// CHECK: te.map{{.*}}{t0 = const("-inf" : "float32"), t1 = eq(x0, t0)} -> (t1)>} : (tensor<4x8xf32>) -> tensor<4x8xi1>
// CHECK: te.reduce{{.*}}(tensor<4x8xi1>) -> tensor<4x1xi1>
func.func @any(%x: tensor<4x8xf32>) -> tensor<4x1xi1> {
  %m = te.map(%x) <(d0 = 4, d1 = 8), [(d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0) {t0 = const("-inf" : "float32"), t1 = eq(x0, t0), t2 = cast(t1 : "int64")} -> (t2)>} : (tensor<4x8xf32>) -> tensor<4x8xi64>
  %r = te.reduce(%m) <(d0 = 4, r1 = 8 reduce), [(d0, r1)] -> [(d0, 0)]> {combiner = #te<combiner max>, epilogue = #te.body<(x0) {t0 = cast(x0 : "bool"), t1 = not(t0)} -> (t1)>} : (tensor<4x8xi64>) -> tensor<4x1xi1>
  func.return %r : tensor<4x1xi1>
}

// A sum counts: it needs the integers.
// CHECK-LABEL: @count
// CHECK: te.map{{.*}}tensor<4x8xi64>
func.func @count(%x: tensor<4x8xf32>) -> tensor<4x1xi1> {
  %m = te.map(%x) <(d0 = 4, d1 = 8), [(d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0) {t0 = const("-inf" : "float32"), t1 = eq(x0, t0), t2 = cast(t1 : "int64")} -> (t2)>} : (tensor<4x8xf32>) -> tensor<4x8xi64>
  %r = te.reduce(%m) <(d0 = 4, r1 = 8 reduce), [(d0, r1)] -> [(d0, 0)]> {combiner = #te<combiner sum>, epilogue = #te.body<(x0) {t0 = cast(x0 : "bool")} -> (t0)>} : (tensor<4x8xi64>) -> tensor<4x1xi1>
  func.return %r : tensor<4x1xi1>
}

// Here the largest number itself is wanted, and here another operator reads the mask.
// CHECK-LABEL: @others
// CHECK: te.map{{.*}}tensor<4x8xi64>
// CHECK: te.map{{.*}}tensor<4x8xi64>
func.func @others(%x: tensor<4x8xf32>) -> (tensor<4x1xi64>, tensor<4x1xi1>, tensor<4x8xi64>) {
  %m = te.map(%x) <(d0 = 4, d1 = 8), [(d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0) {t0 = const("-inf" : "float32"), t1 = eq(x0, t0), t2 = cast(t1 : "int64")} -> (t2)>} : (tensor<4x8xf32>) -> tensor<4x8xi64>
  %r = te.reduce(%m) <(d0 = 4, r1 = 8 reduce), [(d0, r1)] -> [(d0, 0)]> {combiner = #te<combiner max>} : (tensor<4x8xi64>) -> tensor<4x1xi64>
  %n = te.map(%x) <(d0 = 4, d1 = 8), [(d0, d1)] -> [(d0, d1)]> {body = #te.body<(x0) {t0 = const(0.0 : "float32"), t1 = lt(x0, t0), t2 = cast(t1 : "int64")} -> (t2)>} : (tensor<4x8xf32>) -> tensor<4x8xi64>
  %s = te.reduce(%n) <(d0 = 4, r1 = 8 reduce), [(d0, r1)] -> [(d0, 0)]> {combiner = #te<combiner min>, epilogue = #te.body<(x0) {t0 = cast(x0 : "bool")} -> (t0)>} : (tensor<4x8xi64>) -> tensor<4x1xi1>
  func.return %r, %s, %n : tensor<4x1xi64>, tensor<4x1xi1>, tensor<4x8xi64>
}
