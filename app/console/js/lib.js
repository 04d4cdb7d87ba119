// The one place that knows the libraries: components are functions, markup is tagged templates.
import { Component, h, options } from "../vendor/preact.js";
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

/** A component that is drawn again only when one of its properties is another. */
export function memo(component) {
  return class extends Component {
    shouldComponentUpdate(next) {
      const names = Object.keys(next);
      return names.length !== Object.keys(this.props).length || names.some((name) => next[name] !== this.props[name]);
    }

    render(props) {
      return h(component, props);
    }
  };
}

/** Draw what `change` changes before this returns: what is measured and what is shown are then of the same moment. */
export function drawnNow(change) {
  const before = options.debounceRendering;
  options.debounceRendering = (work) => work();
  try {
    change();
  } finally {
    options.debounceRendering = before;
  }
}
