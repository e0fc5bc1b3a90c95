//! The component model's canonical ABI for Zig's own types: a record is a `struct`, a variant is a
//! `union(enum)`, an enum is an `enum`, an option is an optional, and texts and lists are slices.
//!
//! Fields and cases are in the order of the contract, and their names do not matter.

const std = @import("std");

/// The memory of a call, which is never freed.
pub const allocator = std.heap.wasm_allocator;

const chunk = 64 * 1024;
var free_memory: []u8 = &.{};

/// Memory of this call, aligned to 16 bytes. A panic if there is none left.
pub fn bytes(size: usize) [*]u8 {
    const used = std.mem.alignForward(usize, size, 16);
    if (used > free_memory.len) {
        // Not `alloc`, which writes to all of it.
        const size_of_chunk = @max(used, chunk);
        const next = allocator.rawAlloc(size_of_chunk, .@"16", @returnAddress());
        free_memory = (next orelse @panic("no memory is left"))[0..size_of_chunk];
    }
    const start = free_memory.ptr;
    free_memory = free_memory[used..];
    return start;
}

/// The memory into which the host writes its arguments and results.
export fn cabi_realloc(old: ?[*]u8, old_size: usize, alignment: usize, size: usize) ?[*]u8 {
    _ = alignment;
    if (size <= old_size) return old;
    const new = bytes(size);
    if (old) |start| @memcpy(new[0..old_size], start[0..old_size]);
    return new;
}

/// The alignment of a type in bytes.
pub fn alignmentOf(comptime T: type) usize {
    return Layout(T).alignment;
}

/// The size of a type in bytes, which is a multiple of its alignment.
pub fn sizeOf(comptime T: type) usize {
    return Layout(T).size;
}

/// Where a value of type `T` has its parts. The compiler computes it once.
fn Layout(comptime T: type) type {
    return switch (@typeInfo(T)) {
        .void => Plain(0, 1),
        .bool, .@"enum" => Plain(1, 1),
        .int, .float => Plain(@sizeOf(T), @sizeOf(T)),
        // The start and the number of items.
        .pointer => Plain(8, 4),
        .optional => |info| Cases(&.{info.child}),
        .@"union" => |info| Cases(info.field_types),
        .@"struct" => |info| Fields(info.field_types),
        else => @compileError("the contract has no " ++ @typeName(T)),
    };
}

fn Plain(comptime bytes_of: usize, comptime alignment_of: usize) type {
    return struct {
        const size: usize = bytes_of;
        const alignment: usize = alignment_of;
    };
}

/// A byte that says which case it is, and behind it the place for the largest payload.
fn Cases(comptime types: []const type) type {
    return struct {
        const alignment: usize = alignment: {
            var most: usize = 1;
            for (types) |T| most = @max(most, alignmentOf(T));
            break :alignment most;
        };
        const payload: usize = alignment;
        const size: usize = size: {
            var most: usize = 0;
            for (types) |T| most = @max(most, sizeOf(T));
            break :size rounded(payload + most, alignment);
        };
    };
}

/// Fields, each at the next multiple of its alignment.
fn Fields(comptime types: []const type) type {
    return struct {
        const alignment: usize = alignment: {
            var most: usize = 1;
            for (types) |T| most = @max(most, alignmentOf(T));
            break :alignment most;
        };
        const places: [types.len]usize = places: {
            var at: [types.len]usize = undefined;
            var next: usize = 0;
            for (types, &at) |T, *place| {
                place.* = rounded(next, alignmentOf(T));
                next = place.* + sizeOf(T);
            }
            break :places at;
        };
        const size: usize = if (types.len == 0) 0 else size: {
            const last = types.len - 1;
            break :size rounded(places[last] + sizeOf(types[last]), alignment);
        };
    };
}

fn rounded(number: usize, unit: usize) usize {
    return (number + unit - 1) / unit * unit;
}

/// Reads a value. Its texts remain where they are.
pub fn load(comptime T: type, from: [*]const u8) T {
    switch (@typeInfo(T)) {
        .void => return {},
        .bool => return from[0] != 0,
        .int => return std.mem.readInt(T, from[0..@sizeOf(T)], .little),
        .float => return @bitCast(load(@Int(.unsigned, @bitSizeOf(T)), from)),
        .@"enum" => return @fromBackingInt(@intCast(from[0])),
        .pointer => |info| {
            const len = load(u32, from + 4);
            // The start of an empty list means nothing, and may be 0.
            if (len == 0) return &.{};
            const start: [*]const u8 = @ptrFromInt(load(u32, from));
            if (info.child == u8) return start[0..len];
            const items = slice(info.child, len);
            for (items, 0..) |*item, i| {
                item.* = load(info.child, start + i * comptime sizeOf(info.child));
            }
            return items;
        },
        .optional => |info| {
            if (from[0] == 0) return null;
            return load(info.child, from + Layout(T).payload);
        },
        .@"struct" => |info| {
            var value: T = undefined;
            inline for (info.field_names, info.field_types, 0..) |name, Field, i| {
                @field(value, name) = load(Field, from + Layout(T).places[i]);
            }
            return value;
        },
        .@"union" => |info| {
            inline for (info.field_names, info.field_types, 0..) |name, Case, i| {
                if (from[0] == i) {
                    return @unionInit(T, name, load(Case, from + Layout(T).payload));
                }
            }
            unreachable;
        },
        else => @compileError("the contract has no " ++ @typeName(T)),
    }
}

/// Writes a value. Its texts remain where they are.
pub fn store(comptime T: type, to: [*]u8, value: T) void {
    switch (@typeInfo(T)) {
        .void => {},
        .bool => to[0] = @intFromBool(value),
        .int => std.mem.writeInt(T, to[0..@sizeOf(T)], value, .little),
        .float => store(@Int(.unsigned, @bitSizeOf(T)), to, @bitCast(value)),
        .@"enum" => to[0] = @backingInt(value),
        .pointer => |info| {
            var start: [*]const u8 = undefined;
            if (info.child == u8) {
                start = value.ptr;
            } else {
                const size = comptime sizeOf(info.child);
                const items = bytes(value.len * size);
                for (value, 0..) |item, i| store(info.child, items + i * size, item);
                start = items;
            }
            store(u32, to, @intFromPtr(start));
            store(u32, to + 4, @intCast(value.len));
        },
        .optional => |info| {
            to[0] = @intFromBool(value != null);
            if (value) |payload| store(info.child, to + Layout(T).payload, payload);
        },
        .@"struct" => |info| {
            inline for (info.field_names, info.field_types, 0..) |name, Field, i| {
                store(Field, to + Layout(T).places[i], @field(value, name));
            }
        },
        .@"union" => |info| {
            inline for (info.field_names, info.field_types, 0..) |name, Case, i| {
                if (value == @field(std.meta.Tag(T), name)) {
                    to[0] = i;
                    store(Case, to + Layout(T).payload, @field(value, name));
                }
            }
        },
        else => @compileError("the contract has no " ++ @typeName(T)),
    }
}

/// A list of this call. A panic if no memory is left.
pub fn slice(comptime T: type, len: usize) []T {
    comptime std.debug.assert(@alignOf(T) <= 16);
    const memory: [*]align(16) u8 = @alignCast(bytes(len * @sizeOf(T)));
    return @as([*]T, @ptrCast(memory))[0..len];
}

/// The place for a result of type `T`, as the host or this plugin writes it.
pub fn Place(comptime T: type) type {
    return struct {
        memory: [sizeOf(T)]u8 align(8) = undefined,

        pub fn value(self: *const @This()) T {
            return load(T, &self.memory);
        }
    };
}

/// Writes a result and returns where it is.
pub fn result(comptime T: type, value: T) [*]u8 {
    const memory = bytes(comptime sizeOf(T));
    store(T, memory, value);
    return memory;
}

/// The type `result` of the component model.
pub fn Result(comptime Ok: type, comptime Err: type) type {
    return union(enum) { ok: Ok, err: Err };
}
