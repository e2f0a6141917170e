// RUN: not elk-opt %S/no_such_file.mlir 2>&1 | filecheck %s --check-prefix=MISSING
// RUN: not elk-opt %S 2>&1 | filecheck %s --check-prefix=DIRECTORY
// RUN: not elk-opt %S/Inputs/not_utf8.mlir 2>&1 | filecheck %s --check-prefix=BYTES
// RUN: not elk-opt %S/Inputs/model.xyz 2>&1 | filecheck %s --check-prefix=EXTENSION
// RUN: elk-opt %S/Inputs/model.xyz -f mlir | filecheck %s --check-prefix=FRONTEND
// RUN: not elk-opt %s --dim N=4 2>&1 | filecheck %s --check-prefix=DIM
// RUN: not elk-opt %s --dim N=four 2>&1 | filecheck %s --check-prefix=VALUE
// RUN: not elk-opt %s --dim N=4 --dim N=5 2>&1 | filecheck %s --check-prefix=TWICE
// RUN: not elk-opt %s -t nothing 2>&1 | filecheck %s --check-prefix=TARGET
// RUN: not elk-opt %s -o %t.d/none/out.mlir 2>&1 | filecheck %s --check-prefix=OUTPUT

// MISSING: {{^.*}}no_such_file.mlir: error: no such file or directory{{$}}
// DIRECTORY: {{^.*}}tools: error: is a directory{{$}}
// BYTES: {{^.*}}not_utf8.mlir:2:6: error: not UTF-8 text (byte 0xFF){{$}}
// EXTENSION: {{^.*}}model.xyz: error: no frontend reads '.xyz' files
// EXTENSION-NEXT: hint: known are .mlir, .onnx; -f NAME chooses one
// FRONTEND: func.func private @from_another_extension
// DIM: {{^}}elk-opt: error: --dim binds dimensions of ONNX models
// VALUE: {{^}}elk-opt: error: --dim N=four: 'four' is not an integer
// TWICE: {{^}}elk-opt: error: --dim N=5: 'N' is already bound to 4
// TARGET: {{^}}elk-opt: error: argument -t/--target: invalid choice: 'nothing'
// OUTPUT: {{^.*}}out.mlir: error: cannot write: no such file or directory
