/** The working contexts of state memories. */

import { GetWorkingContextRequest_Form as Form, type WorkingContext as ContextMessage } from "./gen/palimpsest/v1/state_service_pb.js";
import { type Chunk, chunk, type PositionRange, range } from "./values.js";

/** What an agent reads before a step; every chunk up to `head` is in it once. */
export interface WorkingContext {
  text: string;
  head: number;
  vectors: { level: number; text: string; positions: PositionRange | undefined }[];
  /** The chunks that are not compressed. */
  recent: Chunk[];
  messages: { role: string; content: string }[];
  compressionDue: boolean;
  /** Why it is not complete; empty: it is. */
  blocked: string;
}

export const FORMS = [Form.PARTS, Form.TEXT, Form.MESSAGES];

export function context(message: ContextMessage): WorkingContext {
  return {
    text: message.text,
    head: Number(message.head),
    vectors: message.vectors.map((one) => ({ level: one.level, text: one.text, positions: range(one.positions) })),
    recent: message.recent.map(chunk),
    messages: message.messages.map((one) => ({ role: one.role, content: one.content })),
    compressionDue: message.compressionDue,
    blocked: message.blocked?.cause ?? "",
  };
}
