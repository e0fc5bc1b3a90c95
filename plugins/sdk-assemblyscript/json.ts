// JSON values, which the standard library of AssemblyScript does not have.

/** The deepest nesting that is read. */
const MAX_DEPTH: i32 = 100;
/** From here on, not every whole number has a number of its own: 2^53. */
const WHOLE_NUMBERS: f64 = 9007199254740992.0;

const enum Kind {
  Missing,
  Null,
  Bool,
  Number,
  Text,
  List,
  Object,
}

/**
 * A JSON value, or a missing one. Values of the wrong kind read as missing, 0, false or empty, so
 * check the kind where it matters.
 */
export class Json {
  private kind: Kind = Kind.Missing;
  /** The text of a string, or the digits of a number. */
  private content: string = "";
  private names: string[] = [];
  private values: Json[] = [];
  private flag: bool = false;
  /** Why a text could not be parsed. Empty if it could. */
  error: string = "";

  /** Parses a text. With an error, the value is missing and has `error`. */
  static parse(text: string): Json {
    return new Reader(text).document();
  }
  static ofNumber(value: f64): Json {
    // JSON has no other numbers.
    if (!isFinite(value)) return Json.nothing();
    const whole = Math.trunc(value) == value && Math.abs(value) < WHOLE_NUMBERS;
    return Json.digits(whole ? (<i64>value).toString() : value.toString());
  }
  static ofInteger(value: i64): Json {
    return Json.digits(value.toString());
  }
  static ofText(value: string): Json {
    const json = Json.a(Kind.Text);
    json.content = value;
    return json;
  }
  static ofBool(value: bool): Json {
    const json = Json.a(Kind.Bool);
    json.flag = value;
    return json;
  }
  /** The value `null`. */
  static nothing(): Json {
    return Json.a(Kind.Null);
  }
  /** An empty list, for `push`. */
  static list(): Json {
    return Json.a(Kind.List);
  }
  /** An empty object, for `set`. */
  static object(): Json {
    return Json.a(Kind.Object);
  }
  private static a(kind: Kind): Json {
    const json = new Json();
    json.kind = kind;
    return json;
  }
  /** For this file: a number by its digits, which are valid. */
  static digits(digits: string): Json {
    const json = Json.a(Kind.Number);
    json.content = digits;
    return json;
  }

  get isMissing(): bool {
    return this.kind == Kind.Missing;
  }
  get isNull(): bool {
    return this.kind == Kind.Null;
  }
  get isBool(): bool {
    return this.kind == Kind.Bool;
  }
  get isNumber(): bool {
    return this.kind == Kind.Number;
  }
  /** Whether it is a whole number, of less than 2^53. */
  get isWhole(): bool {
    const number = this.number;
    return this.isNumber && Math.trunc(number) == number && Math.abs(number) < WHOLE_NUMBERS;
  }
  get isText(): bool {
    return this.kind == Kind.Text;
  }
  get isList(): bool {
    return this.kind == Kind.List;
  }
  get isObject(): bool {
    return this.kind == Kind.Object;
  }

  get bool(): bool {
    return this.flag;
  }
  get number(): f64 {
    return this.isNumber ? parseFloat(this.content) : 0;
  }
  /** The number without its fraction. */
  get integer(): i64 {
    return <i64>this.number;
  }
  get text(): string {
    return this.isText ? this.content : "";
  }
  /** The number of elements of a list, or of fields of an object. */
  get length(): i32 {
    return this.values.length;
  }
  /** The names of an object's fields, in their order. */
  get keys(): string[] {
    return this.names;
  }
  /** The field of an object. */
  get(name: string): Json {
    for (let index = this.names.length - 1; index >= 0; index--) {
      if (this.names[index] == name) return this.values[index];
    }
    return new Json();
  }
  /** The element of a list, from 0. */
  at(index: i32): Json {
    return this.isList && index >= 0 && index < this.length ? this.values[index] : new Json();
  }

  /** Sets the field of an object. Returns the object. */
  set(name: string, value: Json): Json {
    const index = this.names.indexOf(name);
    if (index >= 0) {
      this.values[index] = value;
    } else {
      this.names.push(name);
      this.values.push(value);
    }
    return this;
  }
  /** Adds an element to a list. Returns the list. */
  push(value: Json): Json {
    this.values.push(value);
    return this;
  }

  /** The value as JSON text. A missing one is `null`. */
  toString(): string {
    if (this.isText) return quote(this.content);
    if (this.isNumber) return this.content;
    if (this.isBool) return this.flag ? "true" : "false";
    if (!this.isList && !this.isObject) return "null";
    const parts: string[] = [];
    for (let index = 0; index < this.values.length; index++) {
      const name = this.isObject ? quote(this.names[index]) + ":" : "";
      parts.push(name + this.values[index].toString());
    }
    return this.isObject ? `{${parts.join(",")}}` : `[${parts.join(",")}]`;
  }
}

/** A string as JSON text. */
function quote(text: string): string {
  let quoted = '"';
  let from = 0;
  for (let index = 0; index < text.length; index++) {
    const code = text.charCodeAt(index);
    if (code >= 0x20 && code != 0x22 && code != 0x5c) continue;
    quoted += text.substring(from, index);
    from = index + 1;
    quoted += code < 0x20
      ? "\\u" + code.toString(16).padStart(4, "0")
      : "\\" + String.fromCharCode(code);
  }
  return quoted + text.substring(from) + '"';
}

class Reader {
  private place: i32 = 0;
  private error: string = "";

  constructor(private text: string) {}

  document(): Json {
    const json = this.value(0);
    this.space();
    if (this.place < this.text.length) this.fail("something follows the value");
    if (this.error == "") return json;
    const failed = new Json();
    failed.error = this.error;
    return failed;
  }

  private fail(error: string): Json {
    if (this.error == "") this.error = `${error} (at character ${this.place + 1})`;
    return new Json();
  }
  /** The next character; -1 at the end. */
  private next(): i32 {
    return this.place < this.text.length ? this.text.charCodeAt(this.place) : -1;
  }
  private space(): void {
    let code = this.next();
    while (code == 0x20 || code == 0x0a || code == 0x0d || code == 0x09) {
      this.place++;
      code = this.next();
    }
  }
  private takes(code: i32): bool {
    this.space();
    if (this.next() != code) return false;
    this.place++;
    return true;
  }

  private value(depth: i32): Json {
    if (depth > MAX_DEPTH) return this.fail("it is nested too deep");
    this.space();
    const code = this.next();
    if (code == 0x7b) return this.object(depth);
    if (code == 0x5b) return this.list(depth);
    if (code == 0x22) return Json.ofText(this.string());
    if (code == 0x2d || isDigit(code)) return this.number();
    if (this.word("true")) return Json.ofBool(true);
    if (this.word("false")) return Json.ofBool(false);
    if (this.word("null")) return Json.nothing();
    return this.fail("a value is expected");
  }
  private word(word: string): bool {
    if (!this.text.startsWith(word, this.place)) return false;
    this.place += word.length;
    return true;
  }
  private object(depth: i32): Json {
    const object = Json.object();
    this.place++;
    if (this.takes(0x7d)) return object;
    do {
      this.space();
      if (this.next() != 0x22) return this.fail("the name of a field is expected");
      const name = this.string();
      if (!this.takes(0x3a)) return this.fail("a colon is expected");
      object.set(name, this.value(depth + 1));
    } while (this.error == "" && this.takes(0x2c));
    return this.takes(0x7d) ? object : this.fail("a comma or } is expected");
  }
  private list(depth: i32): Json {
    const list = Json.list();
    this.place++;
    if (this.takes(0x5d)) return list;
    do {
      list.push(this.value(depth + 1));
    } while (this.error == "" && this.takes(0x2c));
    return this.takes(0x5d) ? list : this.fail("a comma or ] is expected");
  }
  private number(): Json {
    const start = this.place;
    if (this.next() == 0x2d) this.place++;
    if (this.next() == 0x30) this.place++;
    else if (!this.digits()) return this.fail("a digit is expected");
    if (this.next() == 0x2e) {
      this.place++;
      if (!this.digits()) return this.fail("a digit is expected");
    }
    if ((this.next() | 0x20) == 0x65) {
      this.place++;
      if (this.next() == 0x2b || this.next() == 0x2d) this.place++;
      if (!this.digits()) return this.fail("a digit is expected");
    }
    return Json.digits(this.text.substring(start, this.place));
  }
  private digits(): bool {
    const start = this.place;
    while (isDigit(this.next())) this.place++;
    return this.place > start;
  }
  private string(): string {
    let read = "";
    this.place++;
    let from = this.place;
    while (true) {
      const code = this.next();
      if (code < 0x20) {
        this.fail("the string has no end");
        return "";
      }
      if (code != 0x22 && code != 0x5c) {
        this.place++;
        continue;
      }
      read += this.text.substring(from, this.place++);
      if (code == 0x22) return read;
      read += this.escape();
      from = this.place;
    }
  }
  private escape(): string {
    const code = this.next();
    this.place++;
    if (code == 0x75) {
      let unit: u32 = 0;
      for (let index = 0; index < 4; index++) {
        const digit = hexadecimal(this.next());
        if (digit < 0) {
          this.fail("four hexadecimal digits are expected");
          return "";
        }
        unit = (unit << 4) | digit;
        this.place++;
      }
      return String.fromCharCode(unit);
    }
    const escaped = code < 0 ? -1 : '"\\/bfnrt'.indexOf(String.fromCharCode(code));
    if (escaped < 0) this.fail("the escape is unknown");
    return escaped < 0 ? "" : '"\\/\b\f\n\r\t'.charAt(escaped);
  }
}

function isDigit(code: i32): bool {
  return code >= 0x30 && code <= 0x39;
}

/** The value of a hexadecimal digit; -1 if it is none. */
function hexadecimal(code: i32): i32 {
  if (isDigit(code)) return code - 0x30;
  const lower = code | 0x20;
  return lower >= 0x61 && lower <= 0x66 ? lower - 0x61 + 10 : -1;
}
