// RUN: elk-opt %s | elk-opt | filecheck %s

// Attributes by their full names; operations write most of them without.

// te.combiner
// CHECK:      combiners = [#te<combiner sum>, #te<combiner prod>, #te<combiner max>, #te<combiner min>]
"test.op"() {combiners = [#te<combiner sum>, #te<combiner prod>, #te<combiner max>, #te<combiner min>]} : () -> ()

// te.domain: parallel, reduced and local dimensions, axes that are sums, and none at all.
// CHECK-NEXT: domains = [#te.domain<(m = 2, n = 5 local, k = 3 reduce), [(m, 2*m + k - 1), (k, n)] -> [(m, n)]>, #te.domain<(), [()] -> [()]>]
"test.op"() {domains = [#te.domain<(m = 2, n = 5 local, k = 3 reduce), [(m, 2*m + k - 1), (k, n)] -> [(m, n)]>, #te.domain<(), [()] -> [()]>]} : () -> ()

// te.global_kind
// CHECK-NEXT: kinds = [#te<global_kind weight>, #te<global_kind state>]
"test.op"() {kinds = [#te<global_kind weight>, #te<global_kind state>]} : () -> ()

// te.norm_form
// CHECK-NEXT: forms = [#te<norm_form rms>, #te<norm_form layer>]
"test.op"() {forms = [#te<norm_form rms>, #te<norm_form layer>]} : () -> ()

// te.weight_part: the bytes of a file that hold a tensor; a weight is made of one or more.
// CHECK-NEXT: part = #te.weight_part<"w" : tensor<4x2xf16>, "m.data", 64, 16, "ab">
"test.op"() {part = #te.weight_part<"w" : tensor<4x2xf16>, "m.data", 64, 16, "ab">} : () -> ()
