// RUN: not elk-opt %s -p cse,canonicalise 2>&1 | filecheck %s --check-prefix=UNKNOWN
// RUN: not elk-opt %s -p 'cse{a=1}' 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not elk-opt %s -p 'cse,stencil-unroll' 2>&1 | filecheck %s --check-prefix=MISSING
// RUN: not elk-opt %s -p 'stencil-unroll{unroll-factor=many}' 2>&1 | filecheck %s --check-prefix=TYPE
// RUN: not elk-opt %s -p 'cse{a=1' 2>&1 | filecheck %s --check-prefix=SYNTAX
// RUN: not elk-opt %s -p '?' 2>&1 | filecheck %s --check-prefix=TOKEN

// UNKNOWN-NOT: Traceback
// UNKNOWN: {{^}}pass-pipeline:1:5: error: unknown pass 'canonicalise'
// UNKNOWN-NEXT:  hint: did you mean canonicalize

// OPTION: {{^}}pass-pipeline:1:1: error: pass 'cse': {{.*}}"a"
// OPTION-NEXT: it has no options

// MISSING: {{^}}pass-pipeline:1:5: error: pass 'stencil-unroll': requires argument "unroll_factor"
// MISSING-NEXT: options:
// MISSING-NEXT: unroll-factor: tuple[int, ...]

// TYPE: {{^}}pass-pipeline:1:1: error: pass 'stencil-unroll': Incompatible types

// SYNTAX: {{^}}pass-pipeline:1:8: error: malformed pass arguments
// SYNTAX-NEXT: cse{a=1
// SYNTAX-NEXT: {{^         \^$}}

// TOKEN: {{^}}pass-pipeline:1:1: error: unknown token
