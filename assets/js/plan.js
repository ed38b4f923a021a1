export function mount() {} export function show() {}
