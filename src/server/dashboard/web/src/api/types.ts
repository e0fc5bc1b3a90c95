// The types of the API under short names.

import type { components } from '../schema';

type Schemas = components['schemas'];

export type Job = Schemas['Job'];
export type JobPage = Schemas['JobPage'];
export type JobChange = Schemas['JobChange'];
export type HistoryEntry = Schemas['HistoryEntry'];
export type Failure = Schemas['Failure'];
export type Explanation = Schemas['Explanation'];
export type LogPage = Schemas['LogPage'];
export type LogLine = Schemas['LogLine'];
export type Operation = Schemas['Operation'];
export type Queue = Schemas['Queue'];
export type QueueExplanation = Schemas['QueueExplanation'];
export type HeldJobs = Schemas['HeldJobs'];
export type ConstraintUse = Schemas['ConstraintUse'];
export type History = Schemas['History'];
export type HistoryPoint = Schemas['HistoryPoint'];
export type Quantiles = Schemas['Quantiles'];
export type Throughput = Schemas['Throughput'];
export type JobType = Schemas['JobType'];
export type Worker = Schemas['Worker'];
export type Schedule = Schemas['Schedule'];
export type Trigger = Schemas['Trigger'];
export type TriggerStatus = Schemas['TriggerStatus'];
export type TriggerTrial = Schemas['TriggerTrial'];
export type HandledEvent = Schemas['HandledEvent'];
export type DeadLetter = Schemas['DeadLetter'];
export type Plugin = Schemas['Plugin'];
export type PluginVersion = Schemas['PluginVersion'];
export type PluginDifferences = Schemas['PluginDifferences'];
export type PluginFaults = Schemas['PluginFaults'];
export type PluginLogs = Schemas['PluginLogs'];
export type ErrorGroup = Schemas['ErrorGroup'];
export type ErrorPage = Schemas['Errors'];
export type AuditEntry = Schemas['AuditEntry'];
export type AuditPage = Schemas['AuditPage'];
export type Token = Schemas['Token'];
export type Doctor = Schemas['Doctor'];
export type Session = Schemas['Session'];
export type OverviewPage = Schemas['OverviewPage'];
export type QueueOverview = Schemas['QueueOverview'];
export type OverviewMinute = Schemas['OverviewMinute'];
export type ServerSetting = Schemas['Setting'];
export type Simulated = Schemas['Simulated'];
export type SimulatedRun = Schemas['SimulatedRun'];
