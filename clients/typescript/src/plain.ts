/** Plain values of the proto's messages: numbers, dates, names of enums, and no fields of the library. */

import type { DescEnum, DescField, DescMessage, JsonObject, MessageShape } from "@bufbuild/protobuf";
import type { Duration, Timestamp } from "@bufbuild/protobuf/wkt";
import { timestampDate } from "@bufbuild/protobuf/wkt";
import { invalid } from "./errors.js";
import type { Json } from "./values.js";

/** The names of an enum, in lower case; "unknown" only where the service is newer. */
export type EnumName<E> = Exclude<Lowercase<string & keyof E>, "unspecified"> | "unknown";

/** A message as a plain value: whole numbers, `Date`, seconds, names in place of the numbers of enums. */
export type Plain<T> = T extends bigint
  ? number
  : T extends Timestamp
    ? Date
    : T extends Duration
      ? number
      : T extends string | boolean | Uint8Array | undefined
        ? T
        : T extends number
          ? number extends T
            ? number
            : string
          : T extends (infer Item)[]
            ? Plain<Item>[]
            : T extends { $typeName: string }
              ? PlainFields<T>
              : T extends Record<string, infer Value>
                ? Record<string, Plain<Value>>
                : T;

type PlainFields<T> = {
  [K in keyof T as PlainName<K, NonNullable<T[K]>>]: K extends `${string}Json` ? Json | undefined : Plain<T[K]>;
};

/** A field that holds JSON is without its ending; a group of which one is set is read where it is needed. */
type PlainName<K, Value> = K extends "$typeName" | "$unknown" ? never : Value extends { case: unknown } ? never : K extends `${infer Name}Json` ? Name : K;

/** A plain value, some of whose fields have types of their own. */
export type With<T, Fields> = Omit<Plain<T>, keyof Fields> & Fields;

/** Returns a message as a plain value. Its type may be narrower, such as with the names of enums. */
export function plain<D extends DescMessage, Value = Plain<MessageShape<D>>>(schema: D, message: MessageShape<D>): Value {
  const found: Record<string, unknown> = {};
  for (const field of schema.fields) {
    const isJson = field.fieldKind === "scalar" && field.localName.endsWith("Json");
    const name = isJson ? field.localName.slice(0, -"Json".length) : field.localName;
    const value = valueOf(field, message);
    found[name] = isJson ? (value ? JSON.parse(value as string) : undefined) : value === undefined ? undefined : converted(field, value);
  }
  return found as Value;
}

function valueOf(field: DescField, message: object): unknown {
  const fields = message as Record<string, unknown>;
  if (!field.oneof) return fields[field.localName];
  const set = fields[field.oneof.localName] as { case?: string; value?: unknown };
  return set.case === field.localName ? set.value : undefined;
}

function converted(field: DescField, value: unknown): unknown {
  switch (field.fieldKind) {
    case "list":
      return (value as unknown[]).map((one) => single(field.enum, field.message, one));
    case "map":
      return Object.fromEntries(Object.entries(value as object).map(([key, one]) => [key, single(field.enum, field.message, one)]));
    default:
      return single(field.enum, field.message, value);
  }
}

function single(enumeration: DescEnum | undefined, message: DescMessage | undefined, value: unknown): unknown {
  if (enumeration) return nameOf(enumeration, value as number);
  if (message?.typeName === "google.protobuf.Timestamp") return timestampDate(value as Timestamp);
  if (message?.typeName === "google.protobuf.Duration") return Number((value as Duration).seconds) + (value as Duration).nanos / 1e9;
  if (message?.typeName === "google.protobuf.Struct") return value as JsonObject;
  if (message) return plain(message, value as MessageShape<DescMessage>);
  return typeof value === "bigint" ? Number(value) : value;
}

/** Returns the name of an enum's number without its prefix; empty: it is not given. */
function nameOf(enumeration: DescEnum, value: number): string {
  // What is trusted, which nearly all is, has no field.
  if (value === 0) return enumeration.name === "SourceTrust" ? "trusted" : "";
  return enumeration.value[value]?.localName.toLowerCase() ?? "unknown";
}

/** Returns the number of an enum's name; undefined: it is not given. Throws InvalidArgument that lists the names. */
export function numberOf<E extends Record<string, string | number>>(enumeration: E, what: string, name: string | undefined): number | undefined {
  if (name === undefined) return undefined;
  const found = enumeration[name.toUpperCase()];
  if (typeof found === "number" && found !== 0) return found;
  const names = Object.keys(enumeration).filter((one) => /^[A-Z]/.test(one) && one !== "UNSPECIFIED");
  throw invalid(`${what} must be ${names.map((one) => `"${one.toLowerCase()}"`).join(" or ")}, not ${JSON.stringify(name)}`);
}

/** Returns an object without the fields that are undefined. */
export function given<T extends object>(fields: T): { [K in keyof T]?: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as { [K in keyof T]?: Exclude<T[K], undefined> };
}

/** Returns a whole number as the proto has it. Throws InvalidArgument. */
export function whole(name: string, value: number | undefined): bigint | undefined {
  if (value === undefined) return undefined;
  if (!Number.isSafeInteger(value) || value < 0) throw invalid(`${name} must be a whole number from 0 on, not ${value}`);
  return BigInt(value);
}

/** Returns seconds as the proto has a duration. Throws InvalidArgument. */
export function duration(seconds: number | undefined): { seconds: bigint; nanos: number } | undefined {
  if (seconds === undefined) return undefined;
  if (!(seconds >= 0 && seconds < Number.MAX_SAFE_INTEGER)) throw invalid(`a duration must be a number of seconds from 0 on, not ${seconds}`);
  return { seconds: BigInt(Math.floor(seconds)), nanos: Math.round((seconds % 1) * 1000) * 1_000_000 };
}
