/** Schemas of memories and answers: of a library such as zod, JSON Schema, or class source. */

import { invalid } from "./errors.js";
import type { Json } from "./values.js";

/** A schema of a library that implements Standard Schema with JSON Schema: zod from 4.2, and others. */
export interface TypedSchema<T> {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => SchemaResult<T> | Promise<SchemaResult<T>>;
    readonly types?: { readonly input: unknown; readonly output: T } | undefined;
    readonly jsonSchema?: {
      readonly input: (options: { readonly target: "draft-2020-12" }) => Record<string, unknown>;
    };
  };
}

/** What a validation found. */
export type SchemaResult<T> =
  | { readonly value: T; readonly issues?: undefined }
  | { readonly issues: readonly { readonly message: string }[] };

/** JSON Schema as an object. */
export type JsonSchema = { [key: string]: Json };
/** A schema; a text is class source, which is parsed and never run. */
export type Schema<T = unknown> = TypedSchema<T> | JsonSchema | string;

export function isTyped<T>(schema: Schema<T> | undefined): schema is TypedSchema<T> {
  return typeof schema === "object" && "~standard" in schema;
}

/** Returns the JSON Schema of a schema that is no class source. */
export function jsonSchemaOf(schema: TypedSchema<unknown> | JsonSchema): JsonSchema {
  if (!isTyped(schema)) return schema as JsonSchema;
  const standard = schema["~standard"];
  if (!standard.jsonSchema) {
    throw invalid(`the schema of ${standard.vendor} cannot be written as JSON Schema: use zod from 4.2, or give JSON Schema`);
  }
  const { $schema: _, ...rest } = standard.jsonSchema.input({ target: "draft-2020-12" });
  return plain(rest as JsonSchema) as JsonSchema;
}

/** Returns a schema without what zod adds to each integer and record, and the service does not know. */
function plain(schema: Json): Json {
  if (Array.isArray(schema)) return schema.map(plain);
  if (typeof schema !== "object" || schema === null) return schema;
  const isKept = ([name, value]: [string, Json]) =>
    !(name === "minimum" && value === Number.MIN_SAFE_INTEGER) &&
    !(name === "maximum" && value === Number.MAX_SAFE_INTEGER) &&
    !(name === "propertyNames" && JSON.stringify(value) === '{"type":"string"}');
  return Object.fromEntries(
    Object.entries(schema)
      .filter(isKept)
      .map(([name, value]) => [name, name === "properties" ? properties(value) : plain(value)]),
  );
}

function properties(schemas: Json): Json {
  return Object.fromEntries(Object.entries(schemas as JsonSchema).map(([name, schema]) => [name, plain(schema)]));
}

/** Returns a value in the type of its schema; undefined while it does not fit, as before the first step. */
export async function typed<T>(schema: Schema<T> | undefined, value: Json): Promise<T | undefined> {
  if (!isTyped(schema)) return undefined;
  const found = await schema["~standard"].validate(value);
  return found.issues === undefined ? found.value : undefined;
}
