//! Reads a configuration into the author's type, and reports each wrong part with its JSON pointer.

const std = @import("std");
const abi = @import("abi.zig");
const Value = std.json.Value;

/// An error in a configuration.
pub const Problem = struct {
    path: []const u8,
    message: []const u8,
};

/// The errors of a configuration.
pub const Problems = struct {
    list: std.ArrayList(Problem) = .empty,

    /// Adds an error. `path` is the JSON pointer to the wrong part (`/limit`).
    pub fn add(self: *Problems, path: []const u8, comptime format: []const u8, args: anytype) void {
        const problem: Problem = .{ .path = path, .message = print(format, args) };
        self.list.append(abi.allocator, problem) catch @panic("no memory is left");
    }
};

/// A text of this call. Bytes that are not UTF-8, such as half of a cut letter, are replaced: the
/// host ends a call that gives it such a text.
pub fn print(comptime format: []const u8, args: anytype) []const u8 {
    const text = std.fmt.allocPrint(abi.allocator, format, args) catch @panic("no memory is left");
    if (std.unicode.utf8ValidateSlice(text)) return text;
    return print("{f}", .{std.unicode.fmtUtf8(text)});
}

/// Reads JSON text. Null and a problem if it is malformed.
pub fn parse(text: []const u8, problems: *Problems) ?Value {
    return std.json.parseFromSliceLeaky(Value, abi.allocator, text, .{}) catch |why| {
        problems.add("", "it is not JSON: {s}", .{@errorName(why)});
        return null;
    };
}

/// Reads a value. Null if there are problems.
pub fn read(comptime T: type, value: Value, path: []const u8, problems: *Problems) ?T {
    if (T == Value) return value;
    switch (@typeInfo(T)) {
        .bool => switch (value) {
            .bool => |truth| return truth,
            else => problems.add(path, "must be true or false", .{}),
        },
        .int => |info| {
            const number: ?T = switch (value) {
                .integer => |whole| std.math.cast(T, whole),
                .number_string => |digits| std.fmt.parseInt(T, digits, 10) catch null,
                else => null,
            };
            if (number) |whole| return whole;
            if (info.bits >= 64) {
                const sign = if (info.signedness == .unsigned) ", not negative" else "";
                problems.add(path, "must be a whole number" ++ sign, .{});
            } else {
                const least = std.math.minInt(T);
                const most = std.math.maxInt(T);
                problems.add(path, "must be a whole number of {d} to {d}", .{ least, most });
            }
        },
        .float => switch (value) {
            .float => |number| return @floatCast(number),
            .integer => |whole| return @floatFromInt(whole),
            .number_string => |digits| return std.fmt.parseFloat(T, digits) catch unreachable,
            else => problems.add(path, "must be a number", .{}),
        },
        .optional => |info| {
            if (value == .null) return @as(T, null);
            return if (read(info.child, value, path, problems)) |some| @as(T, some) else null;
        },
        .@"enum" => |info| {
            if (value == .string) {
                if (std.meta.stringToEnum(T, value.string)) |case| return case;
            }
            const names = comptime names: {
                var text: []const u8 = "";
                for (info.field_names, 0..) |name, i| {
                    text = text ++ (if (i == 0) "" else ", ") ++ name;
                }
                break :names text;
            };
            problems.add(path, "must be one of: {s}", .{names});
        },
        .pointer => |info| {
            if (info.child == u8) {
                if (value == .string) return value.string;
                problems.add(path, "must be a string", .{});
                return null;
            }
            if (value != .array) {
                problems.add(path, "must be a list", .{});
                return null;
            }
            const before = problems.list.items.len;
            const list = abi.slice(info.child, value.array.items.len);
            for (value.array.items, list, 0..) |item, *to, i| {
                const place = print("{s}/{d}", .{ path, i });
                if (read(info.child, item, place, problems)) |one| to.* = one;
            }
            return if (problems.list.items.len == before) list else null;
        },
        .@"struct" => return object(T, value, path, problems),
        else => @compileError("a configuration cannot have a " ++ @typeName(T)),
    }
    return null;
}

fn object(comptime T: type, value: Value, path: []const u8, problems: *Problems) ?T {
    if (value != .object) {
        problems.add(path, "must be an object", .{});
        return null;
    }
    if (comptime mapped(T)) |Item| return map(Item, value, path, problems);
    const info = @typeInfo(T).@"struct";
    const before = problems.list.items.len;
    var fields: T = undefined;
    inline for (info.field_names, info.field_types, info.field_attrs) |name, Field, attributes| {
        const place = print("{s}/{s}", .{ path, name });
        if (value.object.get(name)) |item| {
            if (read(Field, item, place, problems)) |some| @field(fields, name) = some;
        } else if (attributes.defaultValue(Field)) |default| {
            @field(fields, name) = default;
        } else if (@typeInfo(Field) == .optional) {
            @field(fields, name) = null;
        } else {
            problems.add(place, "missing field", .{});
        }
    }
    for (value.object.keys()) |name| {
        const known = inline for (info.field_names) |field| {
            if (std.mem.eql(u8, field, name)) break true;
        } else false;
        if (!known) problems.add(print("{s}/{s}", .{ path, escaped(name) }), "unknown field", .{});
    }
    return if (problems.list.items.len == before) fields else null;
}

/// The type of the values, if `T` is a `std.json.ArrayHashMap`.
fn mapped(comptime T: type) ?type {
    if (!@hasField(T, "map") or !@hasDecl(@FieldType(T, "map"), "KV")) return null;
    const Item = @FieldType(@FieldType(T, "map").KV, "value");
    return if (T == std.json.ArrayHashMap(Item)) Item else null;
}

/// Reads an object whose names the author does not know.
fn map(
    comptime Item: type,
    value: Value,
    path: []const u8,
    problems: *Problems,
) ?std.json.ArrayHashMap(Item) {
    const before = problems.list.items.len;
    var items: std.json.ArrayHashMap(Item) = .{};
    for (value.object.keys(), value.object.values()) |name, item| {
        const place = print("{s}/{s}", .{ path, escaped(name) });
        const some = read(Item, item, place, problems) orelse continue;
        items.map.put(abi.allocator, name, some) catch @panic("no memory is left");
    }
    return if (problems.list.items.len == before) items else null;
}

/// A name in a JSON pointer.
fn escaped(name: []const u8) []const u8 {
    const tildes = replaced(name, "~", "~0");
    return replaced(tildes, "/", "~1");
}

fn replaced(text: []const u8, part: []const u8, by: []const u8) []const u8 {
    const new = std.mem.replaceOwned(u8, abi.allocator, text, part, by);
    return new catch @panic("no memory is left");
}
