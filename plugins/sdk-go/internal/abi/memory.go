// Package abi reads and writes the values of the contract in memory, in the form of the component
// model's canonical ABI.
package abi

import (
	"runtime/debug"
	"unsafe"
)

// MemoryLimit is the size of the heap from which on the garbage collector runs, in bytes. A call
// has 64 MiB of memory in all.
const memoryLimit = 48 << 20

// An instance lives for one call, so most calls need no garbage collection.
func init() {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryLimit)
}

// ChunkBytes is the size of the blocks that small values share.
const chunkBytes = 64 << 10

var (
	// The rest of the newest chunk.
	chunk []uint64
	// All memory that the host or a block has as a number only. The garbage collector does not see
	// such references.
	keptChunks [][]uint64
	keptTexts  []string
)

// Pointer returns a pointer to an address that the host knows.
func pointer(address uint32) unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(nil), address)
}

// Allocate returns the address of zeroed memory, aligned to 8 bytes. It is never freed.
func allocate(bytes uint32) unsafe.Pointer {
	words := int((uint64(bytes) + 7) / 8)
	if words > len(chunk) {
		fresh := make([]uint64, max(words, chunkBytes/8))
		keptChunks = append(keptChunks, fresh)
		if words >= chunkBytes/8 {
			return unsafe.Pointer(unsafe.SliceData(fresh))
		}
		chunk = fresh
	}
	block := unsafe.Pointer(unsafe.SliceData(chunk))
	chunk = chunk[words:]
	return block
}

// Reallocate is the export with which the host gets memory for arguments and results.
//
//go:wasmexport cabi_realloc
func reallocate(old unsafe.Pointer, oldBytes, align, bytes uint32) unsafe.Pointer {
	if bytes == 0 {
		// Any aligned address is valid for a value without bytes.
		return pointer(align)
	}
	block := allocate(bytes)
	if oldBytes > 0 {
		copy(unsafe.Slice((*byte)(block), bytes), unsafe.Slice((*byte)(old), oldBytes))
	}
	return block
}
