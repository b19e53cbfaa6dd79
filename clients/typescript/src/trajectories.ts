/** What the readers of answers did. */

import type { NavigationStatistics as StatisticsMessage, TrainingExample as ExampleMessage, TrajectoryEvent as EventMessage, TrajectoryEvent_Action, TrajectoryEvent_Kind } from "./gen/palimpsest/v1/answer_service_pb.js";
import type { EnumName, Plain, With } from "./plain.js";

/** One event of a trajectory. */
export type TrajectoryEvent = With<EventMessage, { kind: EnumName<typeof TrajectoryEvent_Kind>; action: EnumName<typeof TrajectoryEvent_Action> }>;
/** Sums over one navigation, or all of a memory together. */
export type NavigationStatistics = Plain<StatisticsMessage>;
/** A move of a navigation or a browsing that found an answer, for training. */
export type TrainingExample = Plain<ExampleMessage>;
