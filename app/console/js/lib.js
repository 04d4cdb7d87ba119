// The one place that knows the libraries: components are functions, markup is tagged templates.
import { h } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export { Component, Fragment, createContext, h, render } from "../vendor/preact.js";
export {
  useCallback,
  useContext,
  useEffect,
  useErrorBoundary,
  useId,
  useLayoutEffect,
  useMemo,
  useReducer,
  useRef,
  useState,
} from "../vendor/preact-hooks.js";

/** Markup in a template; values become text or properties, never HTML. */
export const html = htm.bind(h);
