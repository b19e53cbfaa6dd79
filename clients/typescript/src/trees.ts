/** Trees and state memories, with what other memories do not have. */

import { type WorkingContext, context, FORMS } from "./contexts.js";
import * as memories from "./gen/palimpsest/v1/memories_pb.js";
import { type StateVector as StateVectorMessage, StateVector_Origin, StateVectorSchema } from "./gen/palimpsest/v1/state_service_pb.js";
import { type GetNodeTextResponse_Part, GetNodeTextResponse_PartSchema, type TextRange as TextRangeMessage, TextRangeSchema, type Tree_Level, Tree_LevelSchema, type TreeNode as TreeNodeMessage, TreeNode_Origin, TreeNodeSchema } from "./gen/palimpsest/v1/tree_service_pb.js";
import { type MemoryInfo, memoryInfo, sharedSpec } from "./memories.js";
import { Memory, type RebuildOptions, type UpdateOptions } from "./memory.js";
import { Operation } from "./operation.js";
import { duration, type EnumName, given, numberOf, plain, type Plain, whole, type With } from "./plain.js";
import { consistency, type Freshness, type ReadPoint, readPoint } from "./values.js";

/** Text of a log that may begin and end within a chunk. */
export type TextRange = Plain<TextRangeMessage>;
/** A node of a tree: `id` is its level and number, such as "0.17"; level 0 has the leaves. */
export type TreeNode = With<TreeNodeMessage, { origin: EnumName<typeof TreeNode_Origin>; textRange: TextRange }>;
/** A level of a tree, and how many nodes it has. */
export type TreeLevel = Plain<Tree_Level>;
/** A chunk's text as a model reads it, or a part of it. */
export type TextPart = Plain<GetNodeTextResponse_Part>;
/** A paragraph that replaces compressed chunks. */
export type StateVector = With<StateVectorMessage, { origin: EnumName<typeof StateVector_Origin> }>;

/** A tree as of a revision. */
export interface TreeOutline {
  info: MemoryInfo;
  /** What was read. All chunks up to its `appliedPosition` are in the tree, if only in its tail. */
  readPoint: ReadPoint;
  /** From the leaves upwards. */
  levels: TreeLevel[];
  /** The nodes without a parent, in the order of the text; of a sealed tree the root. */
  tops: TreeNode[];
  /** What is not summarized yet; undefined when nothing is. */
  tail: TextRange | undefined;
}

/** How a tree is built and navigated; what is not given is the service's default. */
export interface TreeSettings {
  /** Tokens of the text under a leaf at most; 64 to 100,000. */
  segmentTokens?: number | undefined;
  /** Children of a node at most; 2 to 32. */
  maxChildren?: number | undefined;
  /** Tokens of a summary at most; 16 to 8,000. */
  summaryTokens?: number | undefined;
  /** Whether the model says why before it moves (true). Weak models do better without. */
  reasoning?: boolean | undefined;
  /** The working memory that navigation carries down the path ("cut"). */
  workingMemory?: "cut" | "off" | "summarized" | undefined;
  workingMemoryTokens?: number | undefined;
  /** Model for summaries, as provider/name. */
  model?: string | undefined;
  /** Model for navigation; default: `model`. */
  navigationModel?: string | undefined;
  replyFormat?: "text" | "structured" | undefined;
  /** Whether the beginning of a text replaces a failed summary; else the tree stalls. */
  skipFailures?: boolean | undefined;
}

/** How state vectors are kept; what is not given is the service's default. */
export interface StateSettings {
  /** The task prompt, the first state vector. */
  task?: string | undefined;
  /** Steps that one compression takes; 1 to 1,000. */
  period?: number | undefined;
  periodKind?: "fixed" | "adaptive" | undefined;
  /** Steps are also compressed before they have more tokens together; 0: no limit. */
  periodTokens?: number | undefined;
  /** Steps are also compressed after so long without a new one. */
  idleSeconds?: number | undefined;
  /** Tokens of a state vector at most; 32 to 32,000. */
  stateTokens?: number | undefined;
  /** Strings that every state vector contains word for word. */
  pinned?: string[] | undefined;
  /** Vectors that are compressed into one of the next level; 2 to 64, 0: no episodes. */
  episodeVectors?: number | undefined;
  model?: string | undefined;
  replyFormat?: "text" | "structured" | undefined;
  skipFailures?: boolean | undefined;
}

/** Returns the spec of a tree, with what is given. */
export function treeSpec(settings: TreeSettings): Record<string, unknown> {
  const { reasoning, workingMemory, replyFormat: _, skipFailures: __, ...rest } = settings;
  const { ON, OFF } = memories.TreeSpec_Reasoning;
  return given({
    ...rest,
    ...sharedSpec(settings),
    reasoning: reasoning === undefined ? undefined : reasoning ? ON : OFF,
    workingMemory: numberOf(memories.TreeSpec_WorkingMemory, "workingMemory", workingMemory),
  });
}

/** Returns the spec of a state memory, with what is given. */
export function stateSpec(settings: StateSettings): Record<string, unknown> {
  const { periodKind, idleSeconds, replyFormat: _, skipFailures: __, ...rest } = settings;
  return given({
    ...rest,
    ...sharedSpec(settings),
    periodKind: numberOf(memories.StateSpec_Period, "periodKind", periodKind),
    idle: duration(idleSeconds),
  });
}

function treeNode(message: TreeNodeMessage): TreeNode {
  return plain(TreeNodeSchema, message);
}

/** How a read of a tree or a state memory is made. */
type Reading = Freshness & { timeout?: number | undefined };

/** A tree, by its id. Methods for other kinds throw FailedPrecondition. */
export class Tree extends Memory {
  protected override get kind(): "tree" {
    return "tree";
  }

  /** Seals the tree for good: the log so far gets a single root, and nothing is added later. Returns at once. */
  async seal(options: { requestId?: string } = {}): Promise<Operation<MemoryInfo>> {
    const request = { ...this.named, requestId: options.requestId ?? "" };
    return new Operation(this.connection, await this.connection.call(this.connection.trees.sealTree, request));
  }

  /** Returns levels, nodes without a parent, and the text that is not summarized yet. */
  async outline(options: Reading & { revision?: number } = {}): Promise<TreeOutline> {
    const request = { ...this.named, ...given({ revision: whole("revision", options.revision), consistency: consistency(options) }) };
    const found = await this.connection.call(this.connection.trees.getTree, request, { timeout: options.timeout });
    if (!found.memory) throw new TypeError("the service returned no memory");
    return {
      info: memoryInfo(found.memory),
      readPoint: readPoint(found.readPoint),
      levels: found.levels.map((one) => plain(Tree_LevelSchema, one)),
      tops: found.tops.map(treeNode),
      tail: found.tail && plain(TextRangeSchema, found.tail),
    };
  }

  /** Returns a node by its id. Throws NotFound (NODE_NOT_FOUND). */
  async node(node: string, options: Reading = {}): Promise<TreeNode> {
    const request = { ...this.named, node, ...given({ consistency: consistency(options) }) };
    return treeNode(await this.connection.call(this.connection.trees.getNode, request, { timeout: options.timeout }));
  }

  /** Yields the children of a node, in the order of the text. */
  children(parent: string, options: Freshness = {}): AsyncGenerator<TreeNode> {
    return this.#nodes({ case: "parent", value: parent }, options);
  }

  /** Yields the nodes of a level, 0 for the leaves, in the order of the text. */
  level(level: number, options: Freshness = {}): AsyncGenerator<TreeNode> {
    return this.#nodes({ case: "level", value: level }, options);
  }

  #nodes(scope: { case: "parent"; value: string } | { case: "level"; value: number }, options: Freshness): AsyncGenerator<TreeNode> {
    const request = { ...this.named, scope, pageSize: 1000, ...given({ consistency: consistency(options) }) };
    return this.connection.all(this.connection.trees.listNodes, request, (page) => page.nodes.map(treeNode));
  }

  /** Yields the text under a node, chunk by chunk. */
  text(node: string, options: Freshness = {}): AsyncGenerator<TextPart> {
    const request = { ...this.named, node, ...given({ consistency: consistency(options) }) };
    return this.connection.all(this.connection.trees.getNodeText, request, (page) => page.parts.map((one) => plain(GetNodeTextResponse_PartSchema, one)));
  }

  /** Gives the tree another model for summaries, for navigation, or both; empty means the service's default. */
  override async update(changes: { model?: string; navigationModel?: string } & UpdateOptions): Promise<MemoryInfo> {
    const { model, navigationModel, ...options } = changes;
    return this.updateSpec(given({ model, navigationModel }), options);
  }

  /** Reads the whole log again into a new memory; `settings` replaces all settings. */
  override async rebuild(newId: string, options: { settings?: TreeSettings; model?: string } & RebuildOptions = {}): Promise<Operation<MemoryInfo>> {
    const { settings, model, ...rest } = options;
    return this.rebuildSpec(newId, settings && treeSpec(settings), given({ model }), rest);
  }
}

/** A state memory, by its id. Methods for other kinds throw FailedPrecondition. */
export class State extends Memory {
  protected override get kind(): "state" {
    return "state";
  }

  /**
   * Returns the working context: the vectors in use, and later chunks. `position` reads it as it was when
   * the log ended there. Every chunk is in it, so only `fullyApplied` waits, for due compressions.
   */
  async context(options: Reading & { position?: number } = {}): Promise<WorkingContext> {
    const request = { ...this.named, forms: FORMS, ...given({ position: whole("position", options.position), consistency: consistency(options) }) };
    return context(await this.connection.call(this.connection.states.getWorkingContext, request, { timeout: options.timeout }));
  }

  /** Yields the state vectors, oldest first, of one level or of all. */
  vectors(options: Freshness & { level?: number } = {}): AsyncGenerator<StateVector> {
    const request = { ...this.named, level: options.level ?? 0, pageSize: 1000, ...given({ consistency: consistency(options) }) };
    return this.connection.all(this.connection.states.listStateVectors, request, (page) => page.vectors.map((one): StateVector => plain(StateVectorSchema, one)));
  }

  /** Gives the memory another model; empty means the service's default. */
  override async update(changes: { model?: string } & UpdateOptions): Promise<MemoryInfo> {
    const { model, ...options } = changes;
    return this.updateSpec(given({ model }), options);
  }

  /** Reads the whole log again into a new memory; `settings` replaces all settings. */
  override async rebuild(newId: string, options: { settings?: StateSettings; model?: string } & RebuildOptions = {}): Promise<Operation<MemoryInfo>> {
    const { settings, model, ...rest } = options;
    return this.rebuildSpec(newId, settings && stateSpec(settings), given({ model }), rest);
  }
}
