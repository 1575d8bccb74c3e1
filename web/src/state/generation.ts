/** `Generation`: one request being answered: its stream, its live answers, and when they are drawn and stored. */

import { batch, signal } from "@preact/signals";
import { AnswerStream, type Ending, type StreamSource } from "../api/answer_stream";
import type { DeltaEvent, StreamEvent } from "../api/types";
import type { Message } from "./conversation";
import { DetailLog, LiveAnswer } from "./live_answer";
import { ended, moved, NO_PROGRESS, opened, type Progress, RateMeter } from "./progress";
import type { DetailPiece } from "./storage";

const SAVE_INTERVAL_MS = 1000;
/** Drawing takes longer the longer the part is that may still change: its length over this, in ms, lies between frames. */
const TAIL_PER_MS = 200;
const FRAME_MS = 16;

/** Told what to store: at intervals, so that a reload loses nothing, and once at the end. */
export interface GenerationKeeper {
  keep(generation: Generation, messages: readonly Message[], pieces: readonly DetailPiece[]): void;
  finished(generation: Generation, messages: readonly Message[], pieces: readonly DetailPiece[]): void;
}

/** Details that the answers have already, when a stream is taken up again or an answer continued. */
export interface KnownDetails {
  tokens: readonly (readonly unknown[])[];
  trace: readonly unknown[];
}

export class Generation {
  readonly conversation: string;
  readonly answers: readonly LiveAnswer[];
  /** Changes at most once for each animation frame; reading it makes a view follow. */
  readonly frame = signal(0);
  readonly progress = signal<Progress>(NO_PROGRESS);
  readonly trace: DetailLog;
  readonly #keeper: GenerationKeeper;
  readonly #stream: AnswerStream;
  readonly #meter = new RateMeter();
  readonly #started = performance.now();
  #stored: { requestId: string; lastEventId: number } | null = null;
  #isOver = false;
  #isFrameDue = false;
  #lastSave = 0;
  #lastFrame = 0;
  #next: Progress = NO_PROGRESS;

  constructor(conversation: string, messages: readonly Message[], keeper: GenerationKeeper, known?: KnownDetails) {
    this.conversation = conversation;
    this.answers = messages.map((message, index) => new LiveAnswer(message, known?.tokens[index]));
    this.trace = new DetailLog(known?.trace);
    this.#keeper = keeper;
    this.#stream = new AnswerStream({
      onEvent: (event, id) => this.#take(event, id),
      onReconnecting: (isLost) => this.#move({ ...this.#next, phase: isLost ? "reconnecting" : "decode" }),
    });
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  /** Runs to the end; never rejects. */
  async run(source: StreamSource): Promise<void> {
    if ("requestId" in source) {
      this.#stored = { ...source };
      this.#move({ ...this.#next, phase: "reconnecting" });
    }
    const ending = await this.#stream.run(source);
    if (!this.#isOver) this.#end(ending);
  }

  /** Keeps what is there and stops the engine; nothing that still arrives is shown. */
  stop(): void {
    if (this.#isOver) return;
    this.#stream.stop();
    this.#end({ kind: "stopped" });
  }

  answer(id: string): LiveAnswer | undefined {
    return this.answers.find((answer) => answer.id === id);
  }

  /** Stores what has come so far. */
  save(): void {
    this.#lastSave = performance.now();
    if (!this.#isOver && this.#stored) this.#keeper.keep(this, this.#messages(), this.#pieces());
  }

  #take(event: StreamEvent, id: number): void {
    if (this.#isOver) return;
    if (this.#stored) this.#stored.lastEventId = id;
    switch (event.type) {
      case "open":
        this.#stored = { requestId: event.data.request_id, lastEventId: id };
        for (const answer of this.answers) answer.set({ decoder: event.data.decoder, model: event.data.model });
        this.#move(opened(this.#next, event.data));
        this.save(); // at once: without the id a reload could not re-attach
        break;
      case "status":
        this.#move(moved(this.#next, event.data));
        break;
      case "delta":
        this.#add(event.data);
        break;
      case "trace":
        this.trace.push(event.data.entries);
        for (const answer of this.answers) if (!answer.hasTrace) answer.set({ hasTrace: true });
        this.#draw();
        break;
      case "done":
        this.#move(ended(this.#next, event.data));
        for (const answer of this.answers) {
          answer.set({ usage: event.data.usage, timings: event.data.timings, numTokens: answer.numTokens });
        }
        break;
      case "error":
        break;
    }
    if (performance.now() - this.#lastSave > SAVE_INTERVAL_MS) this.save();
  }

  #add(delta: DeltaEvent): void {
    const answer = this.answers[delta.choice];
    const numBefore = answer?.numTokens ?? 0;
    answer?.add(delta);
    const numNew = (answer?.numTokens ?? 0) - numBefore;
    const now = performance.now();
    const longest = Math.max(...this.answers.map((answer) => answer.numTokens));
    this.#meter.add(numNew, now);
    const timeToFirst = this.#next.timeToFirst ?? (now - this.#started) / 1000;
    const { total: tokens, perSecond: tokensPerSecond } = this.#meter;
    this.#move({ ...this.#next, phase: "decode", tokens, longest, tokensPerSecond, timeToFirst });
  }

  #move(progress: Progress): void {
    this.#next = progress;
    this.#draw();
  }

  #draw(): void {
    if (this.#isFrameDue) return;
    this.#isFrameDue = true;
    const tail = this.answers.reduce((sum, answer) => sum + answer.markdown.tailLength, 0);
    const pause = this.#lastFrame + tail / TAIL_PER_MS - performance.now();
    const draw = () => requestAnimationFrame(() => this.#drawNow());
    if (pause > FRAME_MS) setTimeout(draw, pause - FRAME_MS);
    else draw();
  }

  #drawNow(): void {
    this.#isFrameDue = false;
    this.#lastFrame = performance.now();
    batch(() => {
      this.progress.value = this.#next;
      this.frame.value++;
    });
  }

  #end(ending: Ending): void {
    for (const answer of this.answers) answer.set(endOf(ending, answer));
    this.#stored = null;
    this.#isOver = true;
    this.progress.value = this.#next;
    this.#keeper.finished(this, this.#messages(), this.#pieces());
  }

  #messages(): Message[] {
    const stream = this.#stored ? { stream: { ...this.#stored } } : {};
    return this.answers.map((answer) => {
      const { stream: _, ...message } = answer.message();
      return { ...message, ...stream };
    });
  }

  #pieces(): DetailPiece[] {
    const pieces = this.answers.flatMap((answer) => answer.tokens.unsaved(this.conversation, answer.id, "tokens"));
    const first = this.answers[0];
    return first ? [...pieces, ...this.trace.unsaved(this.conversation, first.id, "trace")] : pieces;
  }
}

/** What the message says about its end. An answer that had finished before the rest of its group keeps its reason. */
function endOf(ending: Ending, answer: LiveAnswer): Partial<Message> {
  if (answer.finish) return {};
  switch (ending.kind) {
    case "done":
      return { finish: "stop" };
    case "stopped":
      return { finish: "stopped" };
    case "failed":
      return { finish: "error", error: ending.error };
    case "lost":
      return { finish: "interrupted", error: { message: LOST, code: "lost" } };
    case "unreachable":
      return { finish: "interrupted", error: { message: UNREACHABLE, code: "unreachable" } };
  }
}

const LOST = "The server no longer knows this answer: it was restarted, or the page was away too long.";
const UNREACHABLE = "The server cannot be reached. It may have been stopped or restarted.";
