// RUN: elk-opt %s | elk-opt | filecheck %s

// Attributes by their full names; operations write most of them without.

// icca.hbm_kind
// CHECK:      kinds = [#icca<hbm_kind weight>, #icca<hbm_kind input>, #icca<hbm_kind output>, #icca<hbm_kind scratch>, #icca<hbm_kind state>]
"test.op"() {kinds = [#icca<hbm_kind weight>, #icca<hbm_kind input>, #icca<hbm_kind output>, #icca<hbm_kind scratch>, #icca<hbm_kind state>]} : () -> ()
