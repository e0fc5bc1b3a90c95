// Package random has the random numbers of a call, which a repetition of the call gets again. They
// are not for secrets.
package random

import "math/bits"

//go:wasmimport tidegate:plugin/random@0.2.0 next
func next() uint64

// Next returns the next number of a sequence that begins with the seed of the call. It is uniform
// over all 64 bits.
func Next() uint64 { return next() }

// Below returns a number from 0 to end-1. It is 0 if end is 0.
func Below(end uint64) uint64 {
	high, _ := bits.Mul64(Next(), end)
	return high
}

// Source is the sequence as a source of math/rand/v2: `rand.New(random.Source{})`.
type Source struct{}

// Uint64 returns the next number.
func (Source) Uint64() uint64 { return Next() }
