import { expect, test } from "vitest";
import { Follow } from "../src/lib/follow";

/** An element of 400 pixels, whose content grows and which clamps its position as browsers do. */
class Element400 {
  scrollHeight = 400;
  readonly clientHeight = 400;
  #top = 0;

  get scrollTop(): number {
    return this.#top;
  }

  set scrollTop(top: number) {
    this.#top = Math.max(0, Math.min(top, this.scrollHeight - this.clientHeight));
  }
}

function scroller() {
  const changes: boolean[] = [];
  const element = new Element400();
  const follow = new Follow(element as unknown as HTMLElement, (isFollowing) => changes.push(isFollowing));
  const scrollTo = (top: number) => {
    element.scrollTop = top;
    follow.scrolled();
  };
  const grow = (by: number) => {
    element.scrollHeight += by;
    follow.grown();
  };
  return { element, follow, changes, scrollTo, grow };
}

test("h7: keeps to the end, lets the reader go up, and follows again from the end", () => {
  const { element, changes, scrollTo, grow } = scroller();
  for (let token = 0; token < 100; token++) grow(20);
  expect(element.scrollTop).toBe(2000);
  scrollTo(element.scrollTop - 300);
  for (let token = 0; token < 200; token++) {
    grow(20);
    expect(element.scrollTop).toBe(1700);
  }
  scrollTo(element.scrollHeight);
  for (let token = 0; token < 200; token++) grow(20);
  expect(element.scrollTop).toBe(element.scrollHeight - element.clientHeight);
  expect(changes).toEqual([false, true]);
});

test("within 100 pixels of the end it follows, beyond it does not", () => {
  const { element, follow, scrollTo, grow } = scroller();
  grow(1000);
  scrollTo(1000 - 90);
  expect(follow.isFollowing).toBe(true);
  grow(20);
  expect(element.scrollTop).toBe(1020);
  scrollTo(1020 - 110);
  expect(follow.isFollowing).toBe(false);
});

test("much new content at once is no scrolling up", () => {
  const { element, follow, grow } = scroller();
  grow(300);
  element.scrollHeight += 5000;
  follow.scrolled();
  expect(follow.isFollowing).toBe(true);
  grow(0);
  expect(element.scrollTop).toBe(5300);
});

test("the button leads to the end and follows from there", () => {
  const { element, follow, scrollTo, grow } = scroller();
  grow(1000);
  scrollTo(0);
  follow.toEnd();
  expect(follow.isFollowing).toBe(true);
  grow(50);
  expect(element.scrollTop).toBe(1050);
});
