export function EnginePanel() {
  return null;
}
