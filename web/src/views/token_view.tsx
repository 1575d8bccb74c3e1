export function TokenView(_props: { message: unknown; isLive: boolean }) {
  return null;
}
