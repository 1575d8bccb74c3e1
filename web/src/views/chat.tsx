/** The chat: transcript, status row, composer. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Follow } from "../lib/follow";
import { useApp } from "../state/app";
import { Announcer } from "./announcer";
import { Composer } from "./composer";
import { Icon } from "./icon";
import { StatusRow } from "./status_row";
import { Transcript } from "./transcript";
import { Welcome } from "./welcome";

export function Chat() {
  const { store } = useApp();
  const isEmpty = store.path.value.length === 0;
  const { scroller, content, isFollowing, toEnd } = useFollowing(store.current.value.id, store.path.value.length);
  return (
    <main class="chat" id="chat" data-busy={store.generation.value !== null}>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard */}
      <div class="scroller" ref={scroller} tabIndex={0} role="region" aria-label="Conversation" data-testid="scroller">
        <div class="transcript" ref={content}>
          {isEmpty ? <Welcome /> : <Transcript key={store.current.value.id} />}
        </div>
      </div>
      <div class="chat-foot">
        {!isFollowing && !isEmpty && (
          <button type="button" class="jump" onClick={toEnd} data-testid="jump-to-latest">
            <Icon name="down" />
            Jump to latest
          </button>
        )}
        <StatusRow />
        <Composer onSend={toEnd} />
      </div>
      <Announcer />
    </main>
  );
}

/** Scrolls along with the content; `key` names what is shown, `length` grows when the user has asked something new. */
function useFollowing(key: string, length: number) {
  const scroller = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const follow = useRef<Follow | null>(null);
  const [isFollowing, setFollowing] = useState(true);
  // What an empty chat shows is read from its beginning.
  const hasMessages = useRef(length > 0);
  hasMessages.current = length > 0;
  useEffect(() => {
    const [element, inside] = [scroller.current, content.current];
    if (!element || !inside) return;
    const following = new Follow(element, setFollowing);
    follow.current = following;
    const onScroll = () => following.scrolled();
    const observer = new ResizeObserver(() => hasMessages.current && following.grown());
    element.addEventListener("scroll", onScroll, { passive: true });
    observer.observe(inside);
    observer.observe(element);
    return () => {
      element.removeEventListener("scroll", onScroll);
      observer.disconnect();
    };
  }, []);
  // Another conversation is shown from its end
  useLayoutEffect(() => {
    if (hasMessages.current) follow.current?.toEnd();
  }, [key]);
  // What is new is shown while following
  useLayoutEffect(() => {
    if (hasMessages.current) follow.current?.grown();
  }, [length]);
  return { scroller, content, isFollowing, toEnd: () => follow.current?.toEnd() };
}
