/** What a new chat shows. */

import { useApp } from "../state/app";
import { type ChatSettings, DEFAULT_SETTINGS } from "../state/settings";

const STARTS: readonly { title: string; text: string; question: string; settings: Partial<ChatSettings> }[] = [
  {
    title: "Just chat",
    text: "One answer, drawn token by token.",
    question: "Why is the sky blue?",
    settings: { decoder: "", n: 1 },
  },
  {
    title: "Compare three answers",
    text: "Side by side from one prefill; pick the one to go on with.",
    question: "Suggest a name for a small bakery, and say why.",
    settings: { decoder: "", n: 3 },
  },
  {
    title: "Watch a beam search",
    text: "A live tree: what is settled, what is contested, what was dropped.",
    question: "Complete the sentence: The best thing about rain is",
    settings: { decoder: "beam", n: 1 },
  },
];

export function Welcome() {
  const { store, actions, server } = useApp();
  const has = (decoder: string) => !decoder || server.decoders.value.some(({ id }) => id === decoder);
  const start = (entry: (typeof STARTS)[number]) => {
    actions.setSettings({ decoderParams: DEFAULT_SETTINGS.decoderParams, ...entry.settings });
    if (!store.generation.value) actions.send(entry.question);
  };
  return (
    <section class="welcome">
      <h2>What shall the model say?</h2>
      <p class="subtle">
        Everything stays on this machine. Open the decoding settings to choose how the answer is found, and the engine
        view to see the memory it takes.
      </p>
      <ul>
        {STARTS.filter(({ settings }) => has(settings.decoder ?? "")).map((entry) => (
          <li key={entry.title}>
            <button type="button" onClick={() => start(entry)} data-testid="start">
              <b>{entry.title}</b>
              <span>{entry.text}</span>
              <q>{entry.question}</q>
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}
