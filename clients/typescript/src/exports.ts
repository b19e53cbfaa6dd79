/** What programs on Node.js and in browsers use alike. */

export { type Access, type ApiKeyInfo, type AuditEvent, type AuditHead, type CreatedApiKey, type ErasureInfo, type ErasureReceipt, type KeptOutText, NO_DIGEST, type QuarantineResult, type QuotaInfo, type QuotaName, type Scope, type SourceRule, type TenantInfo } from "./access.js";
export type { Agent, AgentOptions } from "./agent.js";
export type { Answer, AnswerStream, Asked, AskOptions, Citation, ReaderName, TextPiece } from "./answers.js";
export type { Client, ImportOptions } from "./client.js";
export type { WorkingContext } from "./contexts.js";
export type { ContentPart, Message, Rememberable } from "./conversations.js";
export * from "./errors.js";
export type { ChangeOptions, Difference, Rejection, Revision, RevisionKind } from "./history.js";
export type { Appended, ForgetOptions, Forgotten, FoundEntry, MemoryEntry, SearchIndex, SearchResult, SessionInfo, SessionOptions } from "./log.js";
export type { Amendment, CreateOptions, Edit, MemoryInfo, MemoryOptions, MemoryState, Provenance } from "./memories.js";
export type { Memory, RebuildOptions, UpdateOptions } from "./memory.js";
export type { GeneratedSchema, Operation, OperationInfo, OperationKind, OperationResult } from "./operation.js";
export type { Producer, ProducerOptions } from "./producer.js";
export type { Budget, BudgetLimits, CostReport, Days, Grouping, StoredSize, Usage, UsageLine, UsageReport } from "./resource.js";
export { jsonSchemaOf, type JsonSchema, type Schema, type TypedSchema } from "./schemas.js";
export type { Recalled, RecallOptions, Remembered, Section, Session } from "./session.js";
export type { NavigationStatistics, TrainingExample, TrajectoryEvent } from "./trajectories.js";
export type { ExportBlock, ExportPoint, Source, TransferProgress } from "./transfers.js";
export type { State, StateSettings, StateVector, TextPart, TextRange, Tree, TreeLevel, TreeNode, TreeOutline, TreeSettings } from "./trees.js";
export type { Ack, Chunk, ChunkFilter, ChunkLabels, Freshness, Json, NewChunk, PositionRange, ReadPoint, Redaction, Retention, Step, Turn } from "./values.js";
export type { Committed, Watch, WatchOptions } from "./watch.js";
