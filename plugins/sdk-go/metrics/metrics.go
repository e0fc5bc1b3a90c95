// Package metrics changes metrics of the plugin's own, for operators. A name has 1 to 64 bytes of
// `a-z`, `0-9` and `_`, a label at most 64 bytes. The contract has the other bounds.
package metrics

import "example.com/my-plugin/sdk/internal/abi"

//go:wasmimport tidegate:plugin/metrics@0.2.0 add
func add(name, label string, amount float64)

//go:wasmimport tidegate:plugin/metrics@0.2.0 set
func set(name, label string, value float64)

// Add adds an amount to a counter. A negative amount is left out.
func Add(name, label string, amount float64) {
	add(abi.Valid(name), abi.Valid(label), amount)
}

// Set sets a gauge.
func Set(name, label string, value float64) {
	set(abi.Valid(name), abi.Valid(label), value)
}
