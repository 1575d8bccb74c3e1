/** `Follow`: keeps a scrolled element at its end while the reader is there, and never moves it otherwise. */

/** Within so many pixels of the end the reader counts as being there. */
export const NEAR_END = 100;

export class Follow {
  readonly #element: HTMLElement;
  readonly #onChange: (isFollowing: boolean) => void;
  #isFollowing = true;
  #lastTop = 0;

  constructor(element: HTMLElement, onChange: (isFollowing: boolean) => void) {
    this.#element = element;
    this.#onChange = onChange;
  }

  get isFollowing(): boolean {
    return this.#isFollowing;
  }

  /** To be called when the element has scrolled. Only going up ends the following; growing content is no scrolling. */
  scrolled(): void {
    const { scrollTop } = this.#element;
    const isUp = scrollTop < this.#lastTop;
    this.#lastTop = scrollTop;
    if (this.#distance() <= NEAR_END) this.#set(true);
    else if (isUp) this.#set(false);
  }

  /** To be called when the content has changed its size. */
  grown(): void {
    if (this.#isFollowing) this.toEnd();
  }

  toEnd(): void {
    this.#element.scrollTop = this.#element.scrollHeight;
    this.#lastTop = this.#element.scrollTop;
    this.#set(true);
  }

  #distance(): number {
    const { scrollHeight, scrollTop, clientHeight } = this.#element;
    return scrollHeight - scrollTop - clientHeight;
  }

  #set(isFollowing: boolean): void {
    if (isFollowing === this.#isFollowing) return;
    this.#isFollowing = isFollowing;
    this.#onChange(isFollowing);
  }
}
