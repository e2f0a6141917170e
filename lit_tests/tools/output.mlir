// RUN: elk-opt %s -o %t.mlir
// RUN: filecheck %s < %t.mlir
// A run that fails leaves the file as it was, and nothing beside it.
// RUN: not elk-opt %S/errors_parse.mlir -o %t.mlir
// RUN: filecheck %s < %t.mlir
// RUN: elk-opt %s -o - | filecheck %s
// RUN: elk-opt %s | elk-opt | elk-opt - -p cse | filecheck %s
// RUN: elk-opt < %s | filecheck %s

// CHECK: func.func private @kept
func.func private @kept()
