/** A small line of values over time. */

const WIDTH = 300;
const HEIGHT = 44;

export function Sparkline({ values, label }: { values: readonly number[]; label: string }) {
  const top = Math.max(...values, 1);
  const step = WIDTH / Math.max(values.length - 1, 1);
  const points = values.map(
    (value, index) => `${(index * step).toFixed(1)},${(HEIGHT - 2 - (value / top) * (HEIGHT - 6)).toFixed(1)}`,
  );
  return (
    <svg class="sparkline" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label}>
      {points.length > 1 && (
        <>
          <path class="area" d={`M0,${HEIGHT} L${points.join(" L")} L${WIDTH},${HEIGHT} Z`} />
          <path class="line" d={`M${points.join(" L")}`} />
        </>
      )}
    </svg>
  );
}
