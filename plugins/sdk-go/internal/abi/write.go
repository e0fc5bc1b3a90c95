package abi

import (
	"strings"
	"time"
	"unicode/utf8"
	"unsafe"
)

// Valid returns a string that the host can read. Bytes that are not UTF-8 become U+FFFD.
func Valid(text string) string {
	// This check is several times faster than the conversion.
	if utf8.ValidString(text) {
		return text
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// Block is zeroed memory for a value that the host reads. The methods write the value at an offset.
type Block struct{ start unsafe.Pointer }

// NewBlock returns a block of a size in bytes.
func NewBlock(bytes uint32) Block { return Block{allocate(bytes)} }

// Address returns where the block begins.
func (b Block) Address() Address { return Address(uintptr(b.start)) }

// At returns the block from an offset on.
func (b Block) At(offset uint32) Block { return Block{unsafe.Add(b.start, offset)} }

// Uint8 writes 1 byte.
func (b Block) Uint8(offset uint32, value uint8) { *(*uint8)(unsafe.Add(b.start, offset)) = value }

// Uint32 writes 4 bytes.
func (b Block) Uint32(offset, value uint32) { *(*uint32)(unsafe.Add(b.start, offset)) = value }

// Uint64 writes 8 bytes.
func (b Block) Uint64(offset uint32, value uint64) {
	*(*uint64)(unsafe.Add(b.start, offset)) = value
}

// Bool writes a boolean.
func (b Block) Bool(offset uint32, value bool) {
	if value {
		b.Uint8(offset, 1)
	}
}

// Time writes a timestamp.
func (b Block) Time(offset uint32, value time.Time) { b.Uint64(offset, Timestamp(value)) }

// Text writes a string.
func (b Block) Text(offset uint32, value string) {
	value = Valid(value)
	keptTexts = append(keptTexts, value)
	b.Uint32(offset, uint32(uintptr(unsafe.Pointer(unsafe.StringData(value)))))
	b.Uint32(offset+4, uint32(len(value)))
}

// OptionalText writes an option of a string. An empty one is none.
func (b Block) OptionalText(offset uint32, value string) {
	if value != "" {
		b.Uint8(offset, 1)
		b.Text(offset+4, value)
	}
}

// WriteList writes a list at an offset of a block. Its elements have a size in bytes.
func WriteList[T any](b Block, offset uint32, list []T, size uint32, write func(Block, T)) {
	elements := NewBlock(uint32(len(list)) * size)
	for index, value := range list {
		write(elements.At(uint32(index)*size), value)
	}
	b.Uint32(offset, uint32(elements.Address()))
	b.Uint32(offset+4, uint32(len(list)))
}

// Result is where a host function writes a result of more than one number: at most 48 bytes. The
// caller reads it before it calls the next one.
var Result [6]uint64

// ResultAddress returns the address of the result.
func ResultAddress() Address { return Address(uintptr(unsafe.Pointer(&Result))) }
