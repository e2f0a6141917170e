// RUN: elk-opt %S/northpole_map_stages.mlir -p 'northpole-map-stages{users=4},convert-te-to-icca,northpole-place' | filecheck %s
// RUN: elk-opt %S/northpole_map_stages.mlir -p 'convert-te-to-icca{chip=northpole-16},northpole-place' --split-input-file --verify-diagnostics | filecheck %s --check-prefix=UNMAPPED

// The host's gather has no plan; weights are cut along reduction and outputs, caches along heads and
// positions, norms along the row.
// CHECK:      icca.execute {{.*}}(%table) {
// CHECK:      %n = icca.execute {{.*}} plan <grid [b = 2, d = 16]
// CHECK:      %q = icca.execute {{.*}} plan <grid [b = 1, h = 2, n = 8, k = 16]
// CHECK:      %a = icca.execute {{.*}} entries({{.*}}) plan <grid [b = 1, h = 2, n = 1, p = 8, d = 1]
// CHECK:      %u = icca.execute {{.*}} plan <grid [b = 1, n = 16, k = 16]

// UNMAPPED: there are 0 northpole.program: run northpole-map-stages first
