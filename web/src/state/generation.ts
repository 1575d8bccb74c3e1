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
  readonly #source: StreamSource;
  #lastEventId: number;
  #isOver = false;
  #isFrameDue = false;
  #lastSave = 0;
  #lastFrame = 0;
  #next: Progress = NO_PROGRESS;

  constructor(
    conversation: string,
    messages: readonly Message[],
    source: StreamSource,
    keeper: GenerationKeeper,
    known?: KnownDetails,
  ) {
    this.conversation = conversation;
    this.#source = source;
    this.#lastEventId = source.lastEventId;
    this.answers = messages.map((message, index) => new LiveAnswer(message, known?.tokens[index]));
    this.trace = new DetailLog(known?.trace);
    this.#keeper = keeper;
    this.#stream = new AnswerStream(source, {
      onEvent: (event, id) => this.#take(event, id),
      onReconnecting: (isLost) => this.#move({ ...this.#next, phase: isLost ? "reconnecting" : "decode" }),
    });
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  /** Runs to the end; never rejects. */
  async run(): Promise<void> {
    if (this.#source.body === undefined) this.#move({ ...this.#next, phase: "reconnecting" });
    if (this.#isOver) return;
    const ending = await this.#stream.run();
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
    if (!this.#isOver) this.#keeper.keep(this, this.messages(), this.#pieces());
  }

  #take(event: StreamEvent, id: number): void {
    if (this.#isOver) return;
    this.#lastEventId = id;
    switch (event.type) {
      case "open":
        for (const answer of this.answers) answer.set({ decoder: event.data.decoder, model: event.data.model });
        this.#move(opened(this.#next, event.data));
        break;
      case "status":
        this.#move(moved(this.#next, event.data));
        break;
      case "delta":
        this.#add(event.data);
        break;
      case "trace":
        this.#addTrace(event.data.entries);
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

  #addTrace(entries: readonly unknown[]): void {
    const isFirst = this.trace.items.length === 0;
    this.trace.push(entries);
    if (isFirst) {
      for (const answer of this.answers) answer.set({ hasTrace: true });
      this.save(); // only now the messages tell their views that there is a search to watch
    }
    this.#draw();
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
    for (const answer of this.answers) answer.set(endOf(ending, answer, this.#lastEventId));
    this.#isOver = true;
    this.progress.value = this.#next;
    this.#keeper.finished(this, this.messages(), this.#pieces());
  }

  /** The answers as they are now; until they have ended, with what it takes to go on after a reload. */
  messages(): Message[] {
    const stream = this.#isOver ? {} : { stream: { id: this.#source.id, lastEventId: this.#lastEventId } };
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
function endOf(ending: Ending, answer: LiveAnswer, lastEventId: number): Partial<Message> {
  if (answer.finish) return {};
  switch (ending.kind) {
    case "done":
      return { finish: "stop" };
    case "stopped":
      return { finish: "stopped" };
    case "failed":
      return { finish: "error", error: ending.error };
    case "lost":
      return { finish: "interrupted", error: { message: lastEventId ? LOST : NEVER_SENT, code: "lost" } };
    case "unreachable":
      return { finish: "interrupted", error: { message: UNREACHABLE, code: "unreachable" } };
  }
}

const LOST = "The server no longer knows this answer: it was restarted, or the page was away too long.";
const NEVER_SENT = "The server does not know this question: the page was left before it could be sent.";
const UNREACHABLE = "The server cannot be reached. It may have been stopped or restarted.";
