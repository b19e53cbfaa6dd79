/** Files of exported sessions, on Node.js. */

import { createReadStream } from "node:fs";
import { open, rm, stat } from "node:fs/promises";
import { type ExportBlock, type ExportPoint, exportPoint, type Files, type Source } from "./transfers.js";

/** Returns the bytes of a regular file; undefined for a device, and where nothing is. */
async function sizeOf(path: string): Promise<number | undefined> {
  return stat(path).then(
    (found) => (found.isFile() ? found.size : undefined),
    () => undefined,
  );
}

/** Returns the bytes of a file from its beginning. */
function read(path: string): Source {
  return () => createReadStream(path, { highWaterMark: 512 * 1024 });
}

/** Writes an export to a file that only its owner may read, after what it has already. */
async function write(path: string, session: string, blocks: (after: ExportPoint | undefined) => AsyncIterable<ExportBlock>): Promise<void> {
  const { point, isComplete } = (await sizeOf(path)) ? await exportPoint(read(path)(), session) : { point: undefined, isComplete: false };
  if (isComplete) return;
  const file = await open(path, point ? "r+" : "w", 0o600);
  try {
    // The mode of a device must stay.
    if ((await sizeOf(path)) !== undefined) await file.chmod(0o600);
    if (point) await file.truncate(point.bytes);
    let at = point?.bytes ?? 0;
    for await (const { data } of blocks(point)) {
      for (let written = 0; written < data.length; ) written += (await file.write(data, written, data.length - written, at + written)).bytesWritten;
      at += data.length;
    }
    await file.sync();
  } finally {
    await file.close();
    // What was refused before its first block leaves no file.
    if ((await sizeOf(path)) === 0) await rm(path, { force: true });
  }
}

export const FILES: Files = { read, write };
