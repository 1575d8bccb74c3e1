/** A view whose script is loaded when it is first shown. */

import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";

interface LazyProps<P> {
  load: () => Promise<ComponentType<P>>;
  props?: P;
}

export function Lazy<P>({ load, props }: LazyProps<P>) {
  const [loaded, setLoaded] = useState<{ view: ComponentType<P> } | "failed" | null>(null);
  // What is loaded never changes
  useEffect(() => {
    load().then(
      (view) => setLoaded({ view }),
      () => setLoaded("failed"),
    );
  }, []);
  if (loaded === null) return <p class="loading">Loading…</p>;
  if (loaded === "failed") return <p class="loading">This view could not be loaded. Is the server running?</p>;
  const View = loaded.view as ComponentType<object>;
  return <View {...((props ?? {}) as object)} />;
}
