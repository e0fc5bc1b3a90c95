package abi

import (
	"time"
	"unsafe"
)

// Address is the address of a value that the host wrote. The methods read the value at an offset
// from it.
type Address uint32

func (a Address) pointer(offset uint32) unsafe.Pointer {
	return pointer(uint32(a) + offset)
}

// Uint8 reads 1 byte.
func (a Address) Uint8(offset uint32) uint8 { return *(*uint8)(a.pointer(offset)) }

// Uint16 reads 2 bytes.
func (a Address) Uint16(offset uint32) uint16 { return *(*uint16)(a.pointer(offset)) }

// Uint32 reads 4 bytes.
func (a Address) Uint32(offset uint32) uint32 { return *(*uint32)(a.pointer(offset)) }

// Int32 reads 4 bytes.
func (a Address) Int32(offset uint32) int32 { return *(*int32)(a.pointer(offset)) }

// Uint64 reads 8 bytes.
func (a Address) Uint64(offset uint32) uint64 { return *(*uint64)(a.pointer(offset)) }

// Time reads a timestamp.
func (a Address) Time(offset uint32) time.Time { return Time(a.Uint64(offset)) }

// Text reads a string.
func (a Address) Text(offset uint32) string {
	return Text(a.Uint32(offset), a.Uint32(offset+4))
}

// OptionalText reads an option of a string. It is empty if there is none.
func (a Address) OptionalText(offset uint32) string {
	if a.Uint8(offset) == 0 {
		return ""
	}
	return a.Text(offset + 4)
}

// OptionalTime reads an option of a timestamp. It is the zero time if there is none.
func (a Address) OptionalTime(offset uint32) time.Time {
	if a.Uint8(offset) == 0 {
		return time.Time{}
	}
	return a.Time(offset + 8)
}

// OptionalUint16 reads an option of a 16 bit number. It is 0 if there is none.
func (a Address) OptionalUint16(offset uint32) uint16 {
	if a.Uint8(offset) == 0 {
		return 0
	}
	return a.Uint16(offset + 2)
}

// Text returns the string that the host wrote at an address.
func Text(address, bytes uint32) string {
	if bytes == 0 {
		return ""
	}
	return unsafe.String((*byte)(pointer(address)), int(bytes))
}

// Time returns the time of a timestamp, in UTC.
func Time(timestamp uint64) time.Time { return time.UnixMilli(int64(timestamp)).UTC() }

// Timestamp returns the timestamp of a time. A time before 1970 is 0.
func Timestamp(t time.Time) uint64 { return uint64(max(t.UnixMilli(), 0)) }

// List reads a list whose elements have a size in bytes.
func List[T any](address Address, length, size uint32, read func(Address) T) []T {
	list := make([]T, length)
	for index := range list {
		list[index] = read(address + Address(uint32(index)*size))
	}
	return list
}
