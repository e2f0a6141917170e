// RUN: elk-opt %S/../../passes/northpole_map_stages.mlir -p 'northpole-map-stages{users=4}' -t northpole-map | filecheck %s
// RUN: elk-opt %S/../../passes/northpole_map_stages.mlir -p 'northpole-map-stages{users=4}' -t 'northpole-map{format=json}' | filecheck %s --check-prefix=JSON
// RUN: elk-opt %S/../../passes/northpole_map_stages.mlir -p 'northpole-map-stages{users=4}' -t 'northpole-map{format=svg}' | filecheck %s --check-prefix=SVG

// CHECK:      two-layers.onnx on 3 cards of northpole-16,
// CHECK-NEXT: w4a4 (output layer 8 bits), context 8
// CHECK-NEXT: mini-batch 4 = 2 micro-batches of 2
// CHECK:      0  layer 0
// CHECK:      2  output layer
// CHECK:      tokens/s
// CHECK:      two tokens from an empty pipeline
// CHECK-NEXT: 0 |{{[01.]+}}|
// JSON:       "cards": 3,
// JSON:       "mini_batch": 4,
// JSON:       "micro_batches": 2,
// JSON:       "latency_s":
// JSON:       "latency_per_token_s":
// JSON:       "power_w": 126.0,
// SVG:        <svg xmlns
// SVG:        layer 1</text>
// SVG:        </svg>
