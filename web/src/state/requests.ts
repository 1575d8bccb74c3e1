/** Request bodies from a conversation. */

import type { StreamBody } from "../api/types";
import { type Conversation, pathTo } from "./conversation";
import { requestFields, wireMessages } from "./settings";

/** Asks for answers to the message `id`. */
export function conversationBody(conversation: Conversation, id: string): StreamBody {
  const { settings } = conversation;
  return { ...requestFields(settings), messages: wireMessages(settings.system, pathTo(conversation, id)) };
}

/** Asks for one answer to the message `id` that begins with `text`. */
export function branchBody(conversation: Conversation, id: string, text: string): StreamBody {
  const { n: _, ...body } = conversationBody(conversation, id);
  return {
    ...body,
    messages: [...body.messages, { role: "assistant", content: text }],
    continue_final_message: true,
    add_generation_prompt: false,
  };
}
