/* Made by `make console` from sources.html; the sources are beside this folder. */
const $vendor_preact = (() => { // vendor/preact.js
var n,t,r,u,i,f,o,e,l,c,a,s,h=Symbol.for("pv"),p={},y=[],v=/^m(i|n|o|s|text|space)$/,w=Array.isArray,d=y.slice,_=Object.assign;function g(n){n&&n.parentNode&&n.remove()}function k(n,t,r){var u,i,f,o={},e=arguments.length;for(f in t)"key"==f?u=t[f]:"ref"==f&&"function"!=typeof n?i=t[f]:o[f]=t[f];return e>2&&(o.children=e>3?d.call(arguments,2):r),m(n,o,u,i,null)}function b(n,t,r){var u,i,f,o=_({},n.props),e=arguments.length;for(f in t)"key"==f?u=t[f]:"ref"==f&&"function"!=typeof n.type?i=t[f]:o[f]=t[f];return e>2&&(o.children=e>3?d.call(arguments,2):r),m(n.type,o,void 0!==u?u:n.key,void 0!==i?i:n.ref,null)}function m(r,u,i,f,o){var e={type:r,props:u,key:i,ref:f,__k:null,__:null,__b:0,__e:null,__c:null,constructor:h,__v:o||++t,__i:-1,__u:0};return!o&&n.vnode&&n.vnode(e),e}function M(){return{current:null}}function $(n){return n.children}function x(n,t){this.props=n,this.context=t,this.__g=0}function S(n,t){if(null==t)return n.__&&S(n.__,n.__i+1);for(var r;t<n.__k.length;t++)if((r=n.__k[t])&&r.__e)return r.__e;return"function"!=typeof n.type||n.props.__P?null:S(n)}function C(t){var r,u=t.__v,i=u.__e,f=[],o=[],e=t.__P;e&&((r=_({constructor:h},u)).__v=u.__v+1,n.vnode&&n.vnode(r),z(e,r,u,t.__n,e.namespaceURI,32&u.__u?[i]:null,f,i||S(u),32&u.__u,o),r.__v=u.__v,r.__.__k[r.__i]=r,E(f,r,o),u.__=u.__e=null,r.__e!=i&&j(r))}function j(n){if((n=n.__)&&n.__c&&!n.props.__P)return n.__e=null,n.__k.some(function(t){return t&&(n.__e=t.__e)}),j(n)}function L(t){(8&t.__g||(t.__g|=8,u.push(t),f++))&&i==n.debounceRendering||((i=n.debounceRendering)||queueMicrotask)(H)}function H(){try{for(var n,t=1;u.length;)u.length>t&&u.sort(o),n=u.shift(),t=u.length,8&n.__g&&C(n)}finally{(f=u.length)&&(i||queueMicrotask)(H)}}function I(n,t,r,u,i,f,o,e,l,c,a){var s,h,v,w,d,_,g=u.__k||y,k=t.length;for(l=q(r,t,g,l,k),s=0;s<k;s++)null!=(v=r.__k[s])&&(h=~v.__i&&g[v.__i]||p,v.__i=s,_=z(n,v,h,i,f,o,e,l,c,a),w=v.__e,(h.ref!=v.ref||8&h.__u)&&(h.ref&&G(h.ref,null,v,h),v.ref&&a.push(v.ref,v.__c||w,v)),d=d||w,4&v.__u?(l=A(v,l,n,!h.__v),h.__e&&(h.__e=null)):"function"==typeof v.type&&void 0!==_?l=_:w&&(l=w.nextSibling),v.__u&=-21);return r.__e=d,l}function q(n,t,r,u,i){var f,o,e,l,c,a,s,p,y,v=r.length,d=v,_=0,g=0,k=n.__k=Array(i);for(f=0;f<i;f++)null!=(o=t[f])&&"boolean"!=typeof o&&"function"!=typeof o?("object"!=typeof o||o.constructor===String?o=k[f]=m(null,o):w(o)?o=k[f]=m($,{children:o}):o.constructor===h&&o.__b?o=k[f]=m(o.type,o.props,o.key,o.ref,o.__v):k[f]=o,l=f+_,o.__=n,o.__b=n.__b+1,e=null,~(c=o.__i=P(o,r,l,d))&&(d--,(e=r[c])&&(e.__u|=2)),e&&e.__v?(o.__u|=16,c==l-1?_--:c==l+1?_++:c!=l&&(c>l?_--:_++,g=1)):(~c||(i>v?_--:i<v&&_++),"function"!=typeof o.type&&(o.__u|=4))):k[f]=null;if(g){for(a=[],s=[],f=0;f<i;f++)if((o=k[f])&&16&o.__u){for(_=0,p=a.length;_<p;)a[y=_+p>>1]<o.__i?_=y+1:p=y;a[_]=o.__i,s[f]=_+1}for(_=a.length;f--;)s[f]&&(s[f]==_?_--:k[f].__u|=4)}if(d)for(f=0;f<v;f++)!(e=r[f])||2&e.__u||(e.__e==u&&(u=S(e)),J(e,e));return u}function A(n,t,r,u){var i,f,o,e;if("function"==typeof n.type){if(n.props.__P)return t;if(i=n.__k)for(f=0;f<i.length;f++)i[f]&&(i[f].__=n,t=A(i[f],t,r,!1));return t}for(t&&!t.parentNode&&(t=S(n))&&!t.parentNode&&(t=null),o=n.__e,e=t;e&&8==e.nodeType;)e=e.nextSibling;for(o!=e&&(!u&&r.moveBefore&&o.parentNode?r.moveBefore(o,t):r.insertBefore(o,t||null)),t=o;(t=t&&t.nextSibling)&&8==t.nodeType&&!t.data.startsWith("$s"););return t}function O(n,t){return t=t||[],null!=n&&"boolean"!=typeof n&&(w(n)?n.some(function(n){O(n,t)}):t.push(n)),t}function P(n,t,r,u){var i,f=n.key,o=n.type,e=t[r],l=e&&!(2&e.__u);if(null===e&&null==f||l&&f==e.key&&o==e.type)return r;if(u>(l?1:0)){for(i=r-1;i>=0;i--)if((e=t[i])&&!(2&e.__u)&&f==e.key&&o==e.type)return i;for(i=r+1;i<t.length;i++)if((e=t[i])&&!(2&e.__u)&&f==e.key&&o==e.type)return i}return-1}function T(n,t,r){null==r&&(r=""),"-"==t[0]?n.setProperty(t,r):n[t]=r}function N(n,t,r,u,i){var f,o;if("style"==t)if("string"==typeof r)n.style.cssText=r;else{if("string"==typeof u&&(n.style.cssText=u=""),u)for(t in u)r&&t in r||T(n.style,t);if(r)for(t in r)u&&r[t]==u[t]||T(n.style,t,r[t])}else if("o"==t[0]&&"n"==t[1])"function"!=typeof r&&(r=null),"function"!=typeof u&&(u=null),(n.__e||(n.__e={}))[t]=r,r&&u||(o=a[t]||(a[t]=V(t)),(n.__a||(n.__a={}))[t]=c,f=t!=(t=t.replace(l,"$1")),(t=t.slice(2))[0]<"a"&&(t=t.toLowerCase()),r?n.addEventListener(t,o,f):n.removeEventListener(t,o,f));else{if("http://www.w3.org/2000/svg"==i)t=t.replace(/xlink(H|:h)/,"h").replace(/sName$/,"s");else if("width"!=t&&"height"!=t&&"href"!=t&&"list"!=t&&"form"!=t&&"tabIndex"!=t&&"download"!=t&&"rowSpan"!=t&&"colSpan"!=t&&"role"!=t&&"popover"!=t&&t in n)try{return void(n[t]=null==r?"":r)}catch(n){}if("function"==typeof r)return;null==r||!1===r&&"-"!=t[4]?n.removeAttribute(t):n.setAttribute(t,"popover"==t&&1==r?"":r)}}function V(t){return function(r){var u=this.__e;if(u){if(u=u[t],null==r[e])r[e]=c++;else if(r[e]<this.__a[t])return;return u(n.event?n.event(r):r)}}}function z(t,r,u,i,f,o,e,l,c,a){var s,p,v,d,k,b,m,M,C,j,L,H,q,A,O,P,T,N,V=r.type;if(r.constructor!==h)return null;128&u.__u&&(c=32&u.__u,s=u.__c.__z)&&(r.__u|=c,p=o=[],8==s.nodeType?l=B(s,o):o.push(s),l=o[0]||l),(s=n.__b)&&s(r);n:if("function"==typeof V){v=e.length;try{if(M=r.props,C=(s=V.prototype)&&s.render,j=(s=V.contextType)&&i[s.__c],L=s?j?j.props.value:s.__:i,(d=u.__c)?(r.__c=d,2&d.__g&&(d.__g|=1)):(C?r.__c=d=new V(M,L):(r.__c=d=new x(M,L),d.constructor=V,d.render=K),j&&j.sub(d),d.state||(d.state={}),d.__n=i,d.__g|=8,d.__h=[],d.__k=[]),C&&(d.__s||(d.__s=d.state),V.getDerivedStateFromProps&&(d.__s==d.state&&(d.__s=_({},d.__s)),_(d.__s,V.getDerivedStateFromProps(M,d.__s)))),k=d.props,b=d.state,d.__v=r,u.__c){if(M!==k&&C&&!V.getDerivedStateFromProps&&d.componentWillReceiveProps&&d.componentWillReceiveProps(M,L),r.__v==u.__v&&!(8&d.__g)||!(4&d.__g)&&d.shouldComponentUpdate&&!1===d.shouldComponentUpdate(M,d.__s,L)){r.__v!=u.__v&&(d.props=M,d.state=d.__s,d.__g&=-9),r.__e=u.__e,r.__k=u.__k,r.__k.some(function(n){n&&(n.__=r)}),y.push.apply(d.__h,d.__k),d.__k=[],d.__h.length&&e.push(d),l=S(u);break n}d.componentWillUpdate&&d.componentWillUpdate(M,d.__s,L),C&&d.componentDidUpdate&&d.__h.push(function(){d.componentDidUpdate(k,b,m)})}else C&&!V.getDerivedStateFromProps&&d.componentWillMount&&d.componentWillMount(),C&&d.componentDidMount&&d.__h.push(d.componentDidMount);d.context=L,d.props=M,d.__P=t,d.__g&=-5,H=n.__r,q=C?25:0;do{d.__g&=-9,H&&H(r),s=d.render(d.props,d.state=d.__s,d.context)}while(8&d.__g&&++q<25);C&&(y.push.apply(d.__h,d.__k),d.__k=[]),d.state=d.__s,d.getChildContext&&(i=_({},i,d.getChildContext())),C&&u.__c&&d.getSnapshotBeforeUpdate&&(m=d.getSnapshotBeforeUpdate(k,b)),A=s&&s.type===$&&null==s.key?s.props.children:s,M.__P&&(s=l,f=(t=M.__P).namespaceURI,c=o=null,u.props&&u.props.__P!=t&&(u.__k.some(function(n){n&&J(n,n)}),u.__k=null),l=u.__k?S(u,0):null),l=I(t,w(A)?A:[A],r,u,i,f,o,e,l,c,a),M.__P&&(r.__e=null,l=s),r.__u&=-161,p&&p.some(g),d.__h.length&&e.push(d),1&d.__g&&(d.__g&=-4)}catch(t){if(e.length=v,r.__v=null,c||o)if(t&&t.then){if(r.__u|=128|c,o){for(~(T=o.indexOf(l||void 0))||(T=o.length);(N=o[T-1])&&8==N.nodeType;)T--;for(;T<o.length;T++)if(N=o[T])if(o[T]=null,O){if(N==P)break}else{if(8!=N.nodeType)break;N.data.startsWith("$s")&&(P=B(O=N))}}if(!O){for(;l&&8==l.nodeType&&l.nextSibling;)l=l.nextSibling;O=l}(s=B(O=r.__c.__z||(r.__c.__z=O)))?(r.__e=O,l=s):r.__e=l,l=l&&l.nextSibling}else o&&o.some(g);else r.__e=u.__e;r.__k||(r.__k=u.__k||[]),t&&t.then||D(r),n.__e(t,r,u)}}else l=r.__e=F(u.__e,r,u,i,f,o,e,c,a,t);return(s=n.diffed)&&s(r),l}function B(n,t){if(n&&8==n.nodeType&&n.data.startsWith("$s"))for(var r=1;n=n.nextSibling;){if(8==n.nodeType)if(n.data.startsWith("$s"))r++;else if(n.data.startsWith("/$s")&&!--r)return n;t&&t.push(n)}}function D(n){n&&(n.__c&&(n.__c.__g|=4),n.__k&&n.__k.some(D))}function E(t,r,u){for(var i=0;i<u.length;)G(u[i++],u[i++],u[i++]);n.__c&&n.__c(r,t),t.some(function(r){try{t=r.__h,r.__h=[],t.some(function(n){n.call(r)})}catch(t){n.__e(t,r.__v)}})}function F(t,r,u,i,f,o,e,l,c,a){var s,h,y,_,k,b,m,M,$=u.props||p,x=r.props,C=r.type;if("svg"==C?f="http://www.w3.org/2000/svg":"math"==C?f="http://www.w3.org/1998/Math/MathML":f||(f="http://www.w3.org/1999/xhtml"),o)for(s=0;s<o.length;s++)if((k=o[s])&&(C?k.localName==C:3==k.nodeType)){t=k,o[s]=null;break}if(!t){if(M=a.ownerDocument||document,!C)return M.createTextNode(x);t=M.createElementNS(f,C,x.is?x:a),l&&(n.__m&&n.__m(r,o),l=!1),o=null}if(C){if(a="template"==C&&t.content||t,o="textarea"==C&&null!=x.defaultValue?null:o&&d.call(a.childNodes),!l&&o)for($={},s=0;s<t.attributes.length;s++)$[(k=t.attributes[s]).name]=k.value;for(s in $)k=$[s],"dangerouslySetInnerHTML"==s?y=k:"children"==s||s in x||"value"==s&&"defaultValue"in x||"checked"==s&&"defaultChecked"in x||N(t,s,null,k,f);for(s in x)k=x[s],"children"==s?_=k:"dangerouslySetInnerHTML"==s?h=k:"value"==s?b=k:"checked"==s?m=k:l&&"function"!=typeof k||$[s]===k||N(t,s,k,$[s],f);h?(l||y&&(h.__html==y.__html||h.__html==t.innerHTML)||(t.innerHTML=h.__html),r.__k=[]):(y&&(t.textContent=""),("foreignObject"==C||"http://www.w3.org/1998/Math/MathML"==f&&v.test(C))&&(f="http://www.w3.org/1999/xhtml"),I(a,w(_)?_:[_],r,u,i,f,o,e,o?o[0]:u.__k&&S(u,0),l,c),o&&o.some(g)),l&&"textarea"!=C||(s="value","progress"==C&&null==b?t.removeAttribute(s):null==b||b===t[s]&&("progress"!=C||b)||N(t,s,b,$[s],f),s="checked",null!=m&&m!=t[s]&&N(t,s,m,$[s],f))}else $===x||l&&t.data==x||(t.data=x);return t}function G(t,r,u,i){try{"function"==typeof t?r?r.__x=t(r)||1:i&&(i=i.__c||i.__e)&&(r=i.__x)&&(i.__x=null,"function"==typeof r?r():t(null)):t.current=r}catch(t){n.__e(t,u)}}function J(t,r,u){var i,f,o,e;if(n.unmount&&n.unmount(t),!(i=t.ref)||i.current&&i.current!=t.__e||G(i,null,r,t),i=t.__c){if(i.componentWillUnmount)try{i.componentWillUnmount()}catch(t){n.__e(t,r)}i.__P=i.__n=null}if(i=t.__k)for(e=0;e<i.length;e++)i[e]&&J(i[e],r,"function"!=typeof t.type||u&&!t.props.__P);!u&&(i=t.__c)&&(i=i.__z)&&(f=B(i,o=[]))&&(i==t.__e&&o.some(g),g(f),g(i)),u||g(t.__e),t.__e=t.__c=t.__=null}function K(n,t,r){return this.constructor(n,r)}function Q(t,r){var u,i,f,o;n.__&&n.__(t,r),9==r.nodeType&&(r=r.documentElement),i=(u=t&&32&t.__u)?null:r.__k,r.__k=m($,{children:[t]}),f=[],o=[],z(r,r.__k,i||p,p,r.namespaceURI,i?null:r.firstChild?d.call(r.childNodes):null,f,i?i.__e:r.firstChild,u,o),E(f,r.__k,o),r.__k.props.children=null}function R(n,t){n&&"object"==typeof n&&(n.__u|=32),Q(n,t)}function U(n){function t(n){var r,u;return this.getChildContext||(r=new Set,(u={})[t.__c]=this,this.getChildContext=function(){return u},this.shouldComponentUpdate=function(n){this.props.value!=n.value&&r.forEach(function(n){n.__g|=4,L(n)})},this.sub=function(n){r.add(n);var t=n.componentWillUnmount;n.componentWillUnmount=function(){r.delete(n),t&&t.call(n)}}),n.children}return t.__c="__cC"+s++,t.__=n,t.Provider=(t.Consumer=function(n,t){return n.children(t)}).contextType=t,t}function W(n){return n.children}function X(n,t){return m(W,{__P:t,children:n})}n={__e:function(n,t,r,u){for(var i,o,e;t=t.__;)if((i=t.__c)&&!(1&i.__g)){i.__g|=4;try{if((e=(o=i.constructor)&&o.getDerivedStateFromError)&&i.setState(o.getDerivedStateFromError(n)),i.componentDidCatch&&(i.componentDidCatch(n,u||{}),e=1),e&&8&i.__g)return void(i.__g|=2)}catch(t){n=t}}throw f=0,n}},t=0,r=function(n){return null!=n&&n.constructor===h},x.prototype.setState=function(n,t){var r=this.__s;r&&r!=this.state||(r=this.__s=_({},this.state)),"function"==typeof n&&(n=n(_({},r),this.props)),n&&(_(r,n),this.__v&&(t&&this.__k.push(t),L(this)))},x.prototype.forceUpdate=function(n){this.__v&&(this.__g|=4,n&&this.__h.push(n),L(this))},x.prototype.render=$,u=[],f=0,o=function(n,t){return n.__v.__b-t.__v.__b},e=Symbol(),l=/(PointerCapture)$|Capture$/i,c=0,a={},s=0;
return { Component: x, Fragment: $, cloneElement: b, createContext: U, createElement: k, createPortal: X, createRef: M, h: k, hydrate: R, isValidElement: r, options: n, render: Q, toChildArray: O };
})();
const $vendor_htm = (() => { // vendor/htm.js
var n=function(t,s,r,e){var u;s[0]=0;for(var h=1;h<s.length;h++){var p=s[h++],a=s[h]?(s[0]|=p?1:2,r[s[h++]]):s[++h];3===p?e[0]=a:4===p?e[1]=Object.assign(e[1]||{},a):5===p?(e[1]=e[1]||{})[s[++h]]=a:6===p?e[1][s[++h]]+=a+"":p?(u=t.apply(a,n(t,a,r,["",null])),e.push(u),a[0]?s[0]|=2:(s[h-2]=0,s[h]=u)):e.push(a)}return e},t=new Map;const default_ = function(s){var r=t.get(this);return r||(r=new Map,t.set(this,r)),(r=n(this,r.get(s)||(r.set(s,r=function(n){for(var t,s,r=1,e="",u="",h=[0],p=function(n){1===r&&(n||(e=e.replace(/^\s*\n\s*|\s*\n\s*$/g,"")))?h.push(0,n,e):3===r&&(n||e)?(h.push(3,n,e),r=2):2===r&&"..."===e&&n?h.push(4,n,0):2===r&&e&&!n?h.push(5,0,!0,e):r>=5&&((e||!n&&5===r)&&(h.push(r,0,e,s),r=6),n&&(h.push(r,n,0,s),r=6)),e=""},a=0;a<n.length;a++){a&&(1===r&&p(),p(a));for(var l=0;l<n[a].length;l++)t=n[a][l],1===r?"<"===t?(p(),h=[h],r=3):e+=t:4===r?"--"===e&&">"===t?(r=1,e=""):e=t+e[0]:u?t===u?u="":e+=t:'"'===t||"'"===t?u=t:">"===t?(p(),r=1):r&&("="===t?(r=5,s=e,e=""):"/"===t&&(r<5||">"===n[a][l+1])?(p(),3===r&&(h=h[0]),r=h,(h=h[0]).push(2,0,r),r=0):" "===t||"\t"===t||"\n"===t||"\r"===t?(p(),r=2):e+=t),3===r&&"!--"===e&&(r=4,h=h[0])}return p(),h}(s)),r),arguments,[])).length>1?r:r[0]}
return { default: default_ };
})();
const $vendor_preact_hooks = (() => { // vendor/preact-hooks.js
const { options: n } = $vendor_preact;var t,r,u,i,o=Object.is,f=0,c=[],e=[],a=n,v=a.__b,l=a.__r,m=a.diffed,h=a.__c,s=a.unmount,p=a.__;function y(n,t){a.__h&&a.__h(r,n,f||t),f=0;var u=r.__H||(r.__H={__:[],__h:[]});return n>=u.__.length&&u.__.push({}),u.__[n]}function d(n){return f=1,_(G,n)}function _(n,u,i){var f=y(t++,2);if(f.t=n,!f.__c&&(f.__=[i?i(u):G(void 0,u),function(n){var t=(f.__N||f.__)[0],r=f.t(t,n);o(t,r)||(f.__N=[r,f.__[1]],f.__c.setState({}))}],f.__c=r,!r.__f)){r.__f=!0;var c=r.shouldComponentUpdate;r.shouldComponentUpdate=function(n,t,r){var u=this.__H;if(!u)return!0;var i=!1,f=this.props!=n;if(u.__.some(function(n){n.__N&&(i=!0,o(n.__[0],n.__N[0])||(f=!0))}),c){var e=c.call(this,n,t,r);return i?e||f:e}return!i||f}}return f.__}function A(n,u){var i=y(t++,3);!a.__s&&E(i.__H,u)&&(i.__P=!0,i.__=n,i.u=u,r.__H.__h.push(i))}function F(n,u){var i=y(t++,4);!a.__s&&E(i.__H,u)&&(i.__P=!1,i.__=n,i.u=u,r.__h.push(i))}function T(n){return f=5,w(function(){return{current:n}},[])}function q(n,t,r){f=6,F(function(){if("function"==typeof n){var r=n(t());return function(){n(null),"function"==typeof r&&r()}}if(n)return n.current=t(),function(){return n.current=null}},null==r?r:r.concat(n))}function w(n,r){var u=y(t++,7);return E(u.__H,r)&&(u.__=n(),u.__H=r),u.__}function b(n,t){return f=8,w(function(){return n},t)}function j(n){var u=r.context[n.__c],i=y(t++,9);return i.c=n,u?(null==i.__&&(i.__=!0,u.sub(r)),u.props.value):n.__}function x(n,t){a.useDebugValue&&a.useDebugValue(t?t(n):n)}function O(n){var u=y(t++,10),i=d();return u.__=n,r.componentDidCatch||(r.componentDidCatch=function(n,t){u.__&&u.__(n,t),i[1](n)}),[i[0],function(){return i[1]()}]}function P(){var n=y(t++,11);if(!n.__){for(var u=r.__v;!u.__m&&u.__;)u=u.__;var i=u.__m||(u.__m=[0,0]);n.__="P"+i[0]+"-"+i[1]++}return n.__}function g(){var n;do{for(;n=e.shift();)try{C(n)}catch(t){a.__e(t,{__:(n=n.__P)&&n.__v})}for(;n=c.shift();){var t=n.__H;if(n.__P&&t)try{t.__h.some(C),t.__h.some(D),t.__h=[]}catch(r){t.__h=[],a.__e(r,n.__v)}}}while(e.length)}a.__b=function(n){r=null,v&&v(n)},a.__=function(n,t){n&&t.__k&&t.__k.__m&&(n.__m=t.__k.__m),p&&p(n,t)},a.__r=function(n){l&&l(n),t=0;var i=(r=n.__c).__H;i&&(u==r?r.__h=[]:(i.__h.some(C),i.__h.some(D),t=0),i.__h=[],i.__.some(function(n){n.__N&&(n.__=n.__N),n.u=n.__N=void 0})),u=r},a.diffed=function(n){m&&m(n);var t=n.__c;t&&t.__H&&(t.__H.__h.length&&B(c.push(t)),t.__H.__.some(function(n){n.u&&(n.__H=n.u)})),u=r=null},a.__c=function(n,t){t.some(function(n){try{n.__h.some(C),n.__h=n.__h.filter(function(n){return!n.__||D(n)})}catch(t){n.__h=[function(){throw t}]}}),h&&h(n,t)},a.unmount=function(n){s&&s(n);var t,r,u=n.__c;u&&u.__H&&(u.__H.__.some(function(u){try{if(u.__P&&u.__c){if(void 0===r){for(r=n.__;r&&(!r.__c||!r.__c.__P);)r=r.__;r=r&&r.__c}u.__P=r,B(e.push(u))}else C(u)}catch(n){t=n}}),u.__H=void 0,t&&a.__e(t,u.__v))};var k="function"==typeof requestAnimationFrame;function z(n){var t,r=function(){clearTimeout(u),k&&cancelAnimationFrame(t),setTimeout(n)},u=setTimeout(r,35);k&&(t=requestAnimationFrame(r))}function B(n){1!=n&&i==a.requestAnimationFrame||((i=a.requestAnimationFrame)||z)(g)}function C(n){var t=r,u=n.__c;"function"==typeof u&&(n.__c=void 0,u()),r=t}function D(n){var t=r;n.__c=n.__(),r=t}function E(n,t){return!n||n.length!=t.length||t.some(function(t,r){return!o(t,n[r])})}function G(n,t){return"function"==typeof t?t(n):t}
return { useCallback: b, useContext: j, useDebugValue: x, useEffect: A, useErrorBoundary: O, useId: P, useImperativeHandle: q, useLayoutEffect: F, useMemo: w, useReducer: _, useRef: T, useState: d };
})();
const $js_lib = (() => { // js/lib.js
// The one place that knows the libraries: components are functions, markup is tagged templates.
const { Component: Component, h: h, options: options } = $vendor_preact;
const htm = $vendor_htm.default;




/** Markup in a template; values become text or properties, never HTML. */
const html = htm.bind(h);

/** A component that is drawn again only when one of its properties is another. */
function memo(component) {
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
function drawnNow(change) {
  const before = options.debounceRendering;
  options.debounceRendering = (work) => work();
  try {
    change();
  } finally {
    options.debounceRendering = before;
  }
}
return { Component: $vendor_preact.Component, Fragment: $vendor_preact.Fragment, createContext: $vendor_preact.createContext, h: $vendor_preact.h, render: $vendor_preact.render, useCallback: $vendor_preact_hooks.useCallback, useContext: $vendor_preact_hooks.useContext, useEffect: $vendor_preact_hooks.useEffect, useErrorBoundary: $vendor_preact_hooks.useErrorBoundary, useId: $vendor_preact_hooks.useId, useLayoutEffect: $vendor_preact_hooks.useLayoutEffect, useMemo: $vendor_preact_hooks.useMemo, useReducer: $vendor_preact_hooks.useReducer, useRef: $vendor_preact_hooks.useRef, useState: $vendor_preact_hooks.useState, html: html, memo: memo, drawnNow: drawnNow };
})();
const $js_session = (() => { // js/session.js
// Who is looking: the credential of this tab. It is kept until the tab is closed, and sent to this gateway only.
const KEY = "concertina.key";
const END_USER = "concertina.end_user";
const listeners = new Set();

/** @returns {{key: string, endUser: string}} */
function credentials() {
  return { key: sessionStorage.getItem(KEY) ?? "", endUser: sessionStorage.getItem(END_USER) ?? "" };
}

/** Whether somebody looks with a link that the gateway printed at a start, this one or an earlier one. */
const hasLinkToken = () => credentials().key.startsWith("cop_");

/** @param {{key?: string, endUser?: string}} shown */
function signIn({ key = "", endUser = "" }) {
  // Whatever else a page keeps here was the former key's.
  sessionStorage.clear();
  keep(KEY, key.trim());
  keep(END_USER, endUser.trim());
  listeners.forEach((tell) => tell());
}

function signOut() {
  signIn({});
}

/** Call `tell` whenever somebody signs in or out. @returns what ends it */
function onSession(tell) {
  listeners.add(tell);
  return () => listeners.delete(tell);
}

function keep(name, value) {
  if (value) sessionStorage.setItem(name, value);
}

/**
 * Sign in with the token of a link, `#token=…`, which the start line of the gateway prints. It leaves the address at
 * once, so that no bookmark and no history keeps it.
 */
function followLink() {
  const token = /^#token=(.+)$/.exec(location.hash)?.[1];
  if (!token) return;
  history.replaceState(null, "", `${location.pathname}${location.search}#/conversations`);
  signIn({ key: decodeURIComponent(token) });
}

followLink();
addEventListener("hashchange", followLink);

/** Whether somebody may see all tenants. @param {object} session  as the gateway tells it */
const isOperator = (session) => Boolean(session.operator) || session.scopes.includes("admin");
return { credentials: credentials, hasLinkToken: hasLinkToken, signIn: signIn, signOut: signOut, onSession: onSession, isOperator: isOperator };
})();
const $js_api = (() => { // js/api.js
// The gateway's own API, as any client may use it. Errors are thrown as ApiError, with the code that docs explain.
const { credentials: credentials } = $js_session;

/** The gateway's address: two folders up, so that it also works behind a path prefix. */
const ROOT = new URL("../../", import.meta.url);

let endUserHeader = null;
let isOperator = false;

/** Name the header that says who the end user is; the session endpoint tells it. */
function nameEndUserHeader(name) {
  endUserHeader = name;
}

/** Ask for the conversations of all tenants from now on, as an operator may; the session endpoint tells who is one. */
function actAsOperator(is) {
  isOperator = is;
}

class ApiError extends Error {
  constructor(status, body) {
    const error = typeof body?.error === "string" ? { message: body.error } : (body?.error ?? {});
    super(error.message ?? (status ? `The gateway answered ${status}.` : "The gateway cannot be reached."));
    this.status = status;
    this.code = error.code ?? null;
    this.hint = error.hint ?? null;
    this.param = error.param ?? null;
  }
}

/** GET a JSON document. `query` values that are null, undefined or "" are left out; arrays repeat. */
function get(path, query = {}, { signal } = {}) {
  return json("GET", path, { query, signal });
}

/** Send a JSON body and read a JSON answer. */
function send(method, path, body, { query = {}, signal, headers } = {}) {
  return json(method, path, { query, body, signal, headers });
}

/** Send text as it is, a file for one, and read a JSON answer. */
async function upload(path, text, { query = {}, type = "application/octet-stream", signal } = {}) {
  return parse(await request("POST", path, { query, text, signal, headers: { "Content-Type": type } }));
}

/** The text that GET answers with. */
const exported = async (path) => (await request("GET", path)).text();

/** Have the browser save what GET answers with, under the name `name`. */
async function download(path, query, name) {
  const saved = URL.createObjectURL(await (await request("GET", path, { query })).blob());
  Object.assign(document.createElement("a"), { href: saved, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(saved), 60_000);
}

/**
 * Send a JSON body and read server-sent events.
 * @yields {{event: string, data: any}} data parsed; the closing `[DONE]` ends it
 */
async function* events(path, body, { signal, headers, onHeaders } = {}) {
  const answer = await request("POST", path, { body, signal, headers });
  onHeaders?.(answer.headers);
  const type = answer.headers.get("content-type") ?? "";
  if (!type.startsWith("text/event-stream")) {
    yield { event: "message", data: await parse(answer) };
    return;
  }
  const decoder = new TextDecoder();
  let rest = "";
  let isOver = false;
  for await (const bytes of pieces(answer.body)) {
    const blocks = (rest + decoder.decode(bytes, { stream: true })).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const event = parsed(block);
      // Read to the end, lest it look as if we had hung up.
      isOver ||= event?.data === "[DONE]";
      if (event === null || isOver) continue;
      yield { event: event.event, data: JSON.parse(event.data) };
    }
  }
}

async function json(method, path, options) {
  const answer = await request(method, path, options);
  return answer.status === 204 ? null : parse(answer);
}

/** The JSON of an answer. What is none was not written by the gateway: the page of a proxy that wants a login, for one. */
async function parse(answer) {
  try {
    return await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(answer.status, { error: { message: "The answer is not the gateway’s. Is there a proxy in between that wants a login?" } });
  }
}

async function request(method, path, { query = {}, body, text, signal, headers = {} } = {}) {
  // As a segment, "." or ".." would be an address of something else.
  if (path.split("/").some((part) => /^\.{1,2}$/.test(part))) throw new ApiError(404, null);
  const url = new URL(path.replace(/^\//, ""), ROOT);
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") url.searchParams.append(name, String(one));
    }
  }
  // What the console reads is not counted among the requests of applications.
  const sent = { ...(method === "GET" && { "X-Concertina-Console": "1" }), ...headers };
  const { key, endUser } = credentials();
  if (isOperator) sent["X-Concertina-Tenant"] ??= "*";
  if (key) sent.Authorization = `Bearer ${key}`;
  if (endUser && endUserHeader) sent[endUserHeader] = endUser;
  if (body !== undefined) sent["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(url, {
      method,
      headers: sent,
      body: body === undefined ? text : JSON.stringify(body),
      signal,
      credentials: "omit",
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, null);
  }
  if (!answer.ok) throw new ApiError(answer.status, await answer.json().catch(() => null));
  return answer;
}

async function* pieces(stream) {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  let event = "message";
  const data = [];
  for (const line of block.split(/\r?\n/)) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return data.length ? { event, data: data.join("\n") } : null;
}
return { ROOT: ROOT, nameEndUserHeader: nameEndUserHeader, actAsOperator: actAsOperator, ApiError: ApiError, get: get, send: send, upload: upload, exported: exported, download: download, events: events };
})();
const $js_load = (() => { // js/load.js
// Data that comes from the gateway, for components: loading, failed, or there.
const { useCallback: useCallback, useEffect: useEffect, useRef: useRef, useState: useState } = $js_lib;

/**
 * Load something whenever `deps` change. What was there stays visible while the next is on its way.
 * @param {(signal: AbortSignal) => Promise<any>} load
 * @returns {{data: any, error: Error|null, loading: boolean, reload: () => void}}
 */
function useLoaded(load, deps) {
  const [state, setState] = useState({ data: null, error: null, loading: true });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const leaving = new AbortController();
    setState((before) => ({ ...before, loading: true }));
    load(leaving.signal).then(
      (data) => !leaving.signal.aborted && setState({ data, error: null, loading: false }),
      (error) => !leaving.signal.aborted && setState((before) => ({ data: before.data, error, loading: false })),
    );
    return () => leaving.abort();
  }, [...deps, round]);
  const reload = useCallback(() => setRound((before) => before + 1), []);
  return { ...state, reload };
}

/** Call `tick` every `seconds` while the page can be seen. */
function useEvery(seconds, tick) {
  const newest = useRef(tick);
  newest.current = tick;
  useEffect(() => {
    const timer = setInterval(() => document.visibilityState === "visible" && newest.current(), seconds * 1000);
    return () => clearInterval(timer);
  }, [seconds]);
}

/** `value`, once it has not changed for `ms` milliseconds. */
function useSettled(value, ms = 250) {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}
return { useLoaded: useLoaded, useEvery: useEvery, useSettled: useSettled };
})();
const $js_router = (() => { // js/router.js
// Where we are, in the fragment of the address: `#/conversations/conv_1/log?seq=40`.
const { useEffect: useEffect, useState: useState } = $js_lib;

/** @returns {{parts: string[], query: URLSearchParams}} */
function here() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query) };
}

/** Somebody may have typed the address: what is no encoding stands for itself. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** An address for `href`. @param {string[]} parts  @param {Record<string, any>} query */
function to(parts, query = {}) {
  const known = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const asked = new URLSearchParams(known.map(([name, value]) => [name, String(value)])).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${asked ? `?${asked}` : ""}`;
}

/** Go somewhere; `replace` leaves no entry in the history (filters that change as one types). */
function go(parts, query = {}, { replace = false } = {}) {
  const address = to(parts, query);
  if (replace) {
    history.replaceState(null, "", address);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = address;
  }
}

function useRoute() {
  const [route, setRoute] = useState(here);
  useEffect(() => {
    const follow = () => setRoute(here());
    addEventListener("hashchange", follow);
    follow(); // the address may have changed since the first drawing
    return () => removeEventListener("hashchange", follow);
  }, []);
  return route;
}
return { here: here, to: to, go: go, useRoute: useRoute };
})();
const $js_ui_icons = (() => { // js/ui/icons.js
// Small drawings; the words for them are in the labels beside.
const { html: html } = $js_lib;

const draw = (path) => html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false"><path d=${path} /></svg>`;

const ICONS = {
  menu: draw("M2 4h12M2 8h12M2 12h12"),
  search: draw("M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10ZM10.6 10.6 14 14"),
  person: draw("M8 8a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM2.5 14c.6-2.6 2.7-4 5.5-4s4.900 1.400 5.500 4"),
};
return { ICONS: ICONS };
})();
const $js_ui_menu = (() => { // js/ui/menu.js
// A button with a panel below it: links, buttons, a control.
const { html: html, useEffect: useEffect, useId: useId, useRef: useRef, useState: useState } = $js_lib;

/**
 * Escape, a click elsewhere, another address and a focus that leaves close the panel.
 * @param {object} props
 * @param {string} props.label  what the button is called
 * @param {any} props.face  what it shows
 * @param {string} [props.kind]  a CSS class
 * @param {(close: () => void) => any} props.children  the panel; `close` gives the focus back to the button
 */
function Menu({ label, face, kind = "", children }) {
  const [isOpen, setOpen] = useState(false);
  const whole = useRef(null);
  const id = useId();
  const close = () => {
    setOpen(false);
    whole.current?.querySelector("button")?.focus();
  };
  useEffect(() => {
    if (!isOpen) return undefined;
    const leave = (event) => { if (!whole.current.contains(event.target)) setOpen(false); };
    const shut = () => setOpen(false);
    addEventListener("pointerdown", leave);
    addEventListener("hashchange", shut);
    return () => {
      removeEventListener("pointerdown", leave);
      removeEventListener("hashchange", shut);
    };
  }, [isOpen]);
  const onKey = (event) => {
    if (event.key === "Escape" && isOpen) close();
  };
  const onLeave = ({ relatedTarget }) => {
    if (relatedTarget && !whole.current.contains(relatedTarget)) setOpen(false);
  };
  return html`<div class="menu ${kind}" ref=${whole} onKeyDown=${onKey} onFocusOut=${onLeave}>
    <button type="button" class="bar-button" aria-label=${label} aria-expanded=${isOpen} aria-controls=${isOpen ? id : undefined}
      onClick=${() => setOpen(!isOpen)}>${face}</button>
    ${isOpen && html`<div class="menu-panel" id=${id}>${children(close)}</div>`}
  </div>`;
}
return { Menu: Menu };
})();
const $js_format = (() => { // js/format.js
// Numbers, times and short texts for eyes.
const MAX_TENANT_NAME_CHARS = 20; // the digests that stand for a tenant are longer
const TENANT_CHARS = 6;
const ID_CHARS = 8;
const whole = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const date = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "short" });
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const narrow = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "narrow" });

/** 6,240 */
const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));

/** 1 message, 6,240 messages */
const countOf = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

/** 1.2M */
const short = (value) => (value === null || value === undefined ? "–" : compact.format(value));

/** 71 % */
const percent = (part, of) => (of ? `${Math.round((100 * part) / of)} %` : "–");

/** $0.0123 */
function dollars(value) {
  if (value === null || value === undefined) return "–";
  return `$${value.toLocaleString("en", { maximumFractionDigits: value < 1 ? 4 : 2, minimumFractionDigits: 2 })}`;
}

/** 840 ms, 1.25 s, 3 min */
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 2 : seconds < 60 ? 1 : 0)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

/** The same of milliseconds: <1 ms, 840 ms, 1.25 s */
function milliseconds(value) {
  return value > 0 && value < 1 ? "<1 ms" : duration(typeof value === "number" ? value / 1000 : null);
}

/** A moment in full. @param {number} unixSeconds */
const moment = (unixSeconds) => date.format(new Date(unixSeconds * 1000));

/** 5 minutes ago; with `isShort` 5min ago @param {number} unixSeconds */
function ago(unixSeconds, isShort = false) {
  const seconds = unixSeconds - Date.now() / 1000;
  for (const [unit, size] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
    if (Math.abs(seconds) >= size) return (isShort ? narrow : relative).format(Math.round(seconds / size), unit);
  }
  return "just now";
}

/** A tenant's name; of a digest the last characters, by which people tell tenants apart. */
const shortTenant = (tenant) => (tenant.length > MAX_TENANT_NAME_CHARS ? `…${tenant.slice(-TENANT_CHARS)}` : tenant);

/** Whose something is: the tenant's name, or that of its oldest key; of an end user the application's, and which one. */
function nameTenant({ tenant, tenant_name: name }) {
  const [application, endUser] = tenant.split("/");
  return `${name ?? shortTenant(application)}${endUser ? ` / ${shortTenant(endUser)}` : ""}`;
}

/** An id by its end: ids of one family begin alike. */
const shortId = (id) => `…${id.slice(-ID_CHARS)}`;
return { count: count, countOf: countOf, short: short, percent: percent, dollars: dollars, duration: duration, milliseconds: milliseconds, moment: moment, ago: ago, shortTenant: shortTenant, nameTenant: nameTenant, shortId: shortId };
})();
const $js_ui_parts = (() => { // js/ui/parts.js
// Small parts that every page uses.
const { html: html, useEffect: useEffect, useId: useId, useRef: useRef, useState: useState } = $js_lib;
const { ago: ago, count: count, moment: moment } = $js_format;

/** What became of a message: its family (which has the colour) and the word for it. */
const DISPOSITIONS = {
  verbatim: ["verbatim", "verbatim"],
  anchor: ["kept", "anchor"],
  pinned: ["kept", "pinned"],
  told: ["kept", "instructions"],
  masked: ["trimmed", "masked"],
  truncated: ["trimmed", "truncated"],
  cleared: ["trimmed", "cleared"],
  summarized: ["folded", "summarized"],
  dropped: ["gone", "dropped"],
};

function Disposition({ of }) {
  const [family, word] = DISPOSITIONS[of] ?? ["gone", of];
  return html`<span class="badge ${family}">${word}</span>`;
}

/** `kind`: "", "good", "warn" or "bad". */
function Badge({ kind = "", title, children }) {
  return html`<span class="badge ${kind}" title=${title}>${children}</span>`;
}

/** How a client sends its conversation. Of one that is unknown there is nothing to say. */
const MODES = { resend: "sends the whole history", append: "sends new messages only" };

const STATUS_KINDS = { full: "good", summarized: "folded", trimmed: "warn", bypassed: "warn", degraded: "bad" };

const STATUS_WORDS = {
  full: "The model saw everything word for word",
  summarized: "Summaries stand for some messages",
  trimmed: "Some messages were left out or shortened by rule",
  bypassed: "Not part of this conversation: nothing of it was kept",
  degraded: "The database was away: answered from what the client sent",
};

/** What `context_status` says. */
function Status({ of }) {
  return html`<span class="badge ${STATUS_KINDS[of] ?? ""}" title=${STATUS_WORDS[of]}>${of}</span>`;
}

function Button({ kind = "", small = false, children, ...rest }) {
  return html`<button type="button" class="button ${kind} ${small ? "small" : ""}" ...${rest}>${children}</button>`;
}

/** A labelled control: `children` is a function of the control's id. */
function Field({ label, hint, children }) {
  const id = useId();
  return html`<div class="field">
    <label for=${id}><span>${label}</span></label>
    ${children(id, hint ? `${id}-hint` : undefined)}
    ${hint && html`<small id="${id}-hint">${hint}</small>`}
  </div>`;
}

/** An error as the gateway tells it: what happened, and what to change. */
function Failure({ error, retry }) {
  if (!error) return null;
  return html`<div class="notice bad" role="alert">
    <p><strong>${error.message}</strong>${error.code && html` <code class="small">${error.code}</code>`}</p>
    ${error.hint && html`<p class="hint">${error.hint}</p>`}
    ${retry && html`<p><${Button} small onClick=${retry}>Try again<//></p>`}
  </div>`;
}

function Loading({ children = "Loading…" }) {
  return html`<p class="empty" role="status"><span class="loading">${children}</span></p>`;
}

function Empty({ children }) {
  return html`<div class="empty">${children}</div>`;
}

/** Something loaded by `useLoaded`, or why it is not there. `children` is a function of the data. */
function Loaded({ from, children, waiting }) {
  if (from.data !== null) return html`${from.error && html`<${Failure} error=${from.error} />`}${children(from.data)}`;
  return from.error ? html`<${Failure} error=${from.error} retry=${from.reload} />` : html`<${Loading}>${waiting}<//>`;
}

/** `isShort`: in as few letters as there are, for tables. */
function When({ at, isShort = false }) {
  if (!at) return html`<span class="soft">–</span>`;
  return html`<time datetime=${new Date(at * 1000).toISOString()} title=${moment(at)}>${ago(at, isShort)}</time>`;
}

/**
 * The context bar: `6,240 / 8,192 tokens`.
 * @param {{tokens: number, window: number, threshold?: number, label?: string}} props
 */
function ContextBar({ tokens, window: size, threshold, label = "Context" }) {
  const part = size ? tokens / size : 0;
  const kind = threshold && tokens >= threshold ? (part > 0.95 ? "bad" : "warn") : "";
  const text = `${count(tokens)} / ${count(size)} tokens`;
  return html`<div class="context-bar">
    <div class="track" role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax=${size} aria-valuenow=${tokens}
      aria-valuetext=${text}>
      <div class="fill ${kind}" style=${{ width: `${Math.min(100, 100 * part)}%` }}></div>
      ${threshold && html`<div class="mark" style=${{ left: `${(100 * threshold) / size}%` }}></div>`}
    </div>
    <span class="number small">${text}</span>
  </div>`;
}

/**
 * Tabs are links: every view has an address.
 * @param {{label: string, tabs: {name: string, text: string, href: string}[], current: string}} props
 */
function Tabs({ label, tabs, current }) {
  const element = useRef(null);
  useEffect(() => {
    const tab = element.current.querySelector("[aria-current]");
    if (tab) element.current.scrollLeft = tab.offsetLeft - element.current.offsetLeft;
  }, [current]);
  return html`<nav class="tabs" aria-label=${label} ref=${element}>
    ${tabs.map(
      (tab) => html`<a href=${tab.href} aria-current=${tab.name === current ? "page" : undefined}>${tab.text}</a>`,
    )}
  </nav>`;
}

const FIELDS = ".body :is(input:not([type=checkbox], [type=radio]), textarea)";

/**
 * A modal dialog: focus stays inside, Escape closes. It begins at the first field, or where nothing is to be written at
 * the first button below, which is the one that does nothing.
 */
function Dialog({ title, onClose, footer, children }) {
  const element = useModal((dialog) => dialog.querySelector(FIELDS) ?? dialog.querySelector("footer button"));
  const id = useId();
  return html`<dialog class="dialog" ref=${element} aria-labelledby=${id}
    onCancel=${(event) => { event.preventDefault(); onClose(); }}>
    <header><h2 id=${id}>${title}</h2><${Button} kind="plain" aria-label="Close" onClick=${onClose}>✕<//></header>
    <div class="body stack">${children}</div>
    ${footer && html`<footer>${footer}</footer>`}
  </dialog>`;
}

/**
 * Open a `<dialog>` as long as its component is shown, and then give the focus back.
 * @param {(dialog: HTMLElement) => HTMLElement|null} findFirst  what gets the focus
 * @returns the reference for the dialog
 */
function useModal(findFirst) {
  const element = useRef(null);
  useEffect(() => {
    const dialog = element.current;
    const openers = ancestorsOf(document.activeElement);
    dialog.showModal();
    findFirst(dialog)?.focus();
    return () => {
      dialog.close();
      giveBack(openers);
    };
  }, []);
  return element;
}

function ancestorsOf(element) {
  return element ? [element, ...ancestorsOf(element.parentElement)] : [];
}

/** Focus what had it. What opened a dialog may go with what was deleted in it: then what that was in. */
function giveBack(openers) {
  openers[0]?.focus?.();
  requestAnimationFrame(() => {
    if (document.activeElement !== document.body) return;
    openers.find((one) => one.isConnected && one !== document.body && (one.focus({ preventScroll: true }), document.activeElement === one));
  });
}

/** Copies `text`; says so. @param {{text: string, label?: string, name?: string}} props  `name`: what the button is called */
function Copy({ text, label = "Copy", name }) {
  const [told, setTold] = useState(null);
  const copy = async ({ currentTarget }) => {
    setTold((await copied(text, currentTarget)) ? "Copied" : "Not allowed");
    setTimeout(() => setTold(null), 1500);
  };
  return html`<${Button} small kind="plain" aria-label=${name} onClick=${copy}><span aria-live="polite">${told ?? label}</span><//>`;
}

/** Browsers have no clipboard on pages that came over plain HTTP from another host; there a selection is copied. */
async function copied(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = Object.assign(document.createElement("textarea"), { value: text, className: "visually-hidden", ariaHidden: "true" });
    button.after(field);
    field.select();
    const isDone = document.execCommand("copy");
    field.remove();
    button.focus();
    return isDone;
  }
}
return { DISPOSITIONS: DISPOSITIONS, Disposition: Disposition, Badge: Badge, MODES: MODES, Status: Status, Button: Button, Field: Field, Failure: Failure, Loading: Loading, Empty: Empty, Loaded: Loaded, When: When, ContextBar: ContextBar, Tabs: Tabs, Dialog: Dialog, useModal: useModal, Copy: Copy };
})();
const $js_ui_theme = (() => { // js/ui/theme.js
// Light, dark, or what the system says; remembered in this browser.
const { html: html, useEffect: useEffect, useState: useState } = $js_lib;

const NAME = "concertina.theme";
const THEMES = { system: "System", light: "Light", dark: "Dark" };

const readTheme = () => (localStorage.getItem(NAME) in THEMES ? localStorage.getItem(NAME) : "system");

function setTheme(theme) {
  localStorage.setItem(NAME, theme);
  applyTheme();
}

/** Called before anything is drawn, so that no page begins in other colours. */
function applyTheme() {
  const theme = readTheme();
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  dispatchEvent(new Event("themechange"));
}

function Theme() {
  const [theme, show] = useState(readTheme);
  useEffect(() => {
    const follow = () => show(readTheme());
    addEventListener("themechange", follow);
    return () => removeEventListener("themechange", follow);
  }, []);
  return html`<label class="row theme"><span class="grow">Colours</span>
    <select class="input small" value=${theme} onChange=${(event) => setTheme(event.target.value)}>
      ${Object.entries(THEMES).map(([value, text]) => html`<option value=${value}>${text}</option>`)}
    </select>
  </label>`;
}
return { THEMES: THEMES, readTheme: readTheme, setTheme: setTheme, applyTheme: applyTheme, Theme: Theme };
})();
const $js_commands = (() => { // js/commands.js
// Commands that the shown page has beside those of the frame: the palette lists them.
const { useEffect: useEffect, useRef: useRef } = $js_lib;

const pages = new Set();

/**
 * Offer commands while the component is shown.
 * @param {({text: string, run: () => void}|false)[]} commands
 */
function useCommands(commands) {
  const newest = useRef(commands);
  newest.current = commands;
  useEffect(() => {
    pages.add(newest);
    return () => pages.delete(newest);
  }, []);
}

/** @returns {{text: string, run: () => void}[]} */
const pageCommands = () => [...pages].flatMap((commands) => commands.current).filter(Boolean);
return { useCommands: useCommands, pageCommands: pageCommands };
})();
const $js_ui_confirm = (() => { // js/ui/confirm.js
// A question before something that cannot be undone, and what came of it.
const { html: html, useState: useState } = $js_lib;
const { Button: Button, Dialog: Dialog, Failure: Failure } = $js_ui_parts;

/**
 * @param {object} props
 * @param {string} props.title
 * @param {string} props.action  what the button says that does it
 * @param {string} [props.kind]  of that button: "danger" or "primary"
 * @param {() => Promise<any>} props.onConfirm  what it throws is shown, and the dialog stays
 * @param {() => void} props.onClose
 */
function Confirm({ title, action, kind = "danger", isReady = true, onConfirm, onClose, children }) {
  const { busy, error, run } = useAction(onConfirm, onClose);
  const footer = html`
    <${Button} onClick=${onClose}>Cancel<//>
    <${Button} kind=${kind} disabled=${busy || !isReady} onClick=${run}>${busy ? "Working…" : action}<//>
  `;
  return html`<${Dialog} title=${title} onClose=${onClose} footer=${footer}>
    ${children}
    <${Failure} error=${error} />
  <//>`;
}

/**
 * Something that a person starts: whether it runs, and why it failed.
 * @param {(...args: any[]) => Promise<any>} act
 * @param {(result: any) => void} [onDone]
 */
function useAction(act, onDone) {
  const [state, setState] = useState({ busy: false, error: null });
  const run = async (...args) => {
    setState({ busy: true, error: null });
    let result;
    try {
      result = await act(...args);
    } catch (error) {
      setState({ busy: false, error });
      return;
    }
    setState({ busy: false, error: null });
    onDone?.(result);
  };
  return { ...state, run };
}
return { Confirm: Confirm, useAction: useAction };
})();
const $js_pages_chat_answering = (() => { // js/pages/chat/answering.js
// One answer as it comes: chunks of a completion's stream put together. No components here.
const { ApiError: ApiError, events: events } = $js_api;

const EVENTS = new Set(["compaction_started", "compaction_completed", "compaction_failed"]);
/** Of one answer. The index of a call is the provider's word, and a list must not become as long as it says. */
const MOST_CALLS = 1_000;

/**
 * @typedef {object} Answer
 * @property {string} text
 * @property {string} reasoning
 * @property {string} refusal
 * @property {{id?: string, name: string, arguments: string}[]} calls
 * @property {string|null} finish  why it ended; null while it has not
 * @property {string|null} conversation  its id
 * @property {string|null} status  as `context_status`
 * @property {object|null} context
 * @property {object|null} usage
 * @property {{type: string, since: number, inputTokens?: number, window?: number, durationMs?: number}|null} compaction
 */

/** @returns {Answer} */
function nothingYet() {
  return {
    text: "", reasoning: "", refusal: "", calls: [], finish: null, conversation: null, status: null, context: null, usage: null, compaction: null,
  };
}

/**
 * Ask, and tell of each piece as it comes.
 * @param {object} body  of the completion
 * @param {Record<string, string>} headers
 * @param {AbortSignal} signal
 * @param {(answer: Answer, isEvent: boolean) => void} tell  the same object each time; `isEvent` where something happened
 *   that is not text
 * @returns {Promise<Answer>} whole
 */
async function ask(body, headers, signal, tell) {
  const answer = nothingYet();
  try {
    for await (const { data } of events("v1/chat/completions", body, { signal, headers })) {
      if (data.error) throw new ApiError(0, data);
      tell(answer, took(answer, data));
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError) throw error;
    throw new ApiError(0, { error: { message: "The connection to the gateway broke off in the middle of the answer." } });
  }
  if (answer.finish === null) throw new ApiError(0, { error: { message: "The answer broke off before it was whole." } });
  return answer;
}

/** Take a chunk in. @returns {boolean} whether anything but text came */
function took(answer, chunk) {
  answer.conversation = chunk.conversation_id ?? answer.conversation;
  answer.status = chunk.context_status ?? answer.status;
  answer.context = isObject(chunk.context) ? chunk.context : answer.context;
  answer.usage = chunk.usage ?? answer.usage;
  const event = EVENTS.has(chunk.context_event?.type) ? chunk.context_event : null;
  if (event) answer.compaction = followed(answer.compaction, event);
  const [choice] = chunk.choices ?? [];
  const delta = choice?.delta ?? choice?.message ?? {};
  answer.text += typeof delta.content === "string" ? delta.content : "";
  answer.reasoning += delta.reasoning_content ?? (typeof delta.reasoning === "string" ? delta.reasoning : "");
  answer.refusal += delta.refusal ?? "";
  for (const call of delta.tool_calls ?? []) addCall(answer.calls, call);
  answer.finish = choice?.finish_reason ?? answer.finish;
  return Boolean(event || choice?.finish_reason || delta.tool_calls);
}

const isObject = (value) => value !== null && typeof value === "object";

function followed(before, event) {
  if (event.type === "compaction_started") {
    return { type: "running", since: Date.now(), inputTokens: event.input_tokens, window: event.context_window };
  }
  return { ...before, type: event.type === "compaction_failed" ? "failed" : "completed", durationMs: event.duration_ms };
}

function addCall(calls, piece) {
  const at = piece.index ?? 0;
  if (!Number.isInteger(at) || at < 0 || at >= MOST_CALLS) return;
  const call = (calls[at] ??= { name: "", arguments: "" });
  call.id = piece.id ?? call.id;
  call.name += piece.function?.name ?? "";
  call.arguments += piece.function?.arguments ?? "";
}
return { nothingYet: nothingYet, ask: ask };
})();
const $js_pages_chat_stored = (() => { // js/pages/chat/stored.js
// What is stored of a conversation, for a chat that goes on with it.
const { get: get } = $js_api;

const PAGE = 200;
const SHOWN = 100;

const place = (id, rest = "") => `v1/conversations/${encodeURIComponent(id)}${rest}`;

/** @returns {Promise<{total: number, data: object[]}>} messages of the log from `fromSeq` on */
function stretch(id, fromSeq, limit, signal) {
  return get(place(id, "/log"), { from_seq: fromSeq, limit }, { signal });
}

/** The newest messages, and what the next request would bring to the model. */
async function newest(id, signal) {
  const { total } = await stretch(id, 0, 1, signal);
  const fromSeq = Math.max(0, total - SHOWN);
  const { data } = await stretch(id, fromSeq, SHOWN, signal);
  return { messages: data, context: await preview(id, data, signal), total };
}

/** What would be sent now; null where none of these messages names a model that would be asked. */
async function preview(id, rows, signal) {
  if (!rows.some((row) => row.model)) return null;
  try {
    return await get(place(id, "/context"), { limit: 1 }, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return null;
  }
}

/**
 * All messages before `endSeq` as a client would send them, to have the last one answered once more.
 * @returns {Promise<object[]|null>} null where they cannot be told word for word: something was erased, cut or attached
 */
async function historyBefore(id, endSeq, signal) {
  const all = [];
  while (all.length < endSeq) {
    const { data } = await stretch(id, all.length, Math.min(PAGE, endSeq - all.length), signal);
    if (!data.length) break;
    all.push(...data);
  }
  return all.every(isPlain) ? all.map(asSent) : null;
}

const isPlain = (row) => !row.truncated && !row.deleted && !row.erased && !row.attachments.length && !row.refusal;

function asSent(row) {
  return {
    role: row.role,
    content: row.tool_calls.length && !row.text ? null : row.text,
    ...(row.name && { name: row.name }),
    ...(row.tool_call_id && { tool_call_id: row.tool_call_id }),
    ...(row.tool_calls.length && {
      tool_calls: row.tool_calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } })),
    }),
  };
}
return { SHOWN: SHOWN, stretch: stretch, newest: newest, preview: preview, historyBefore: historyBefore };
})();
const $js_pages_chat_talk = (() => { // js/pages/chat/talk.js
// The state of a chat: what was said, the answer that is coming, and what can be done.
const { useCallback: useCallback, useEffect: useEffect, useRef: useRef, useState: useState } = $js_lib;
const { to: to } = $js_router;
const { ask: ask, nothingYet: nothingYet } = $js_pages_chat_answering;
const { SHOWN: SHOWN, historyBefore: historyBefore, newest: newest, preview: preview, stretch: stretch } = $js_pages_chat_stored;

const DRAW_MS = 80;
const SLOW_DRAW_MS = 300;
const SLOW_CHARS = 6000;
const STORED_AFTER_MS = [150, 600, 2000];

/**
 * @typedef {object} Said  a message that is shown
 * @property {string} key
 * @property {string} role
 * @property {string} text
 * @property {object} [row]  of the stored log
 * @property {object} [answer]  as it came
 * @property {"coming"|"whole"|"stopped"|"failed"} [state]
 * @property {Error} [error]
 */

/**
 * @param {string} asked  id of the conversation to go on with, or ""
 * @param {() => object} options  what the next request is made with
 */
function useTalk(asked, options) {
  const [id, setId] = useState(asked);
  const [said, setSaid] = useState([]);
  const [context, setContext] = useState(null);
  const [error, setError] = useState(null);
  const [isLoading, setLoading] = useState(Boolean(asked));
  const [announced, announce] = useState("");
  const running = useRef(null);
  const current = useRef(asked);
  const [isBusy, setBusy] = useState(false);

  useEffect(() => {
    const leaving = new AbortController();
    if (asked) open(asked, leaving.signal);
    return () => {
      leaving.abort();
      running.current?.abort();
    };
  }, []);

  async function open(conversation, signal) {
    setLoading(true);
    setError(null);
    try {
      const found = await newest(conversation, signal);
      setSaid(found.messages.map(fromRow));
      setContext(found.context);
    } catch (failure) {
      if (failure.name !== "AbortError") setError(failure);
    }
    if (!signal.aborted) setLoading(false);
  }

  async function older() {
    const first = said.find((one) => one.row)?.row.seq ?? 0;
    const fromSeq = Math.max(0, first - SHOWN);
    const { data } = await stretch(current.current, fromSeq, first - fromSeq);
    setSaid((before) => [...data.map(fromRow), ...before]);
  }

  function moved(conversation) {
    if (!conversation || conversation === current.current) return;
    current.current = conversation;
    setId(conversation);
    history.replaceState(null, "", to(["chat", conversation]));
  }

  /** Ask, with `messages` behind what is stored or (`isHistory`) as the whole history. */
  async function request(messages, { isHistory = false } = {}) {
    const { model, policy, system, fields } = options();
    const stopper = new AbortController();
    running.current = stopper;
    setBusy(true);
    announce("");
    const key = `answer ${Date.now()}`;
    const draw = throttled((answer) => setSaid((before) => replaced(before, key, { answer: { ...answer }, text: answer.text })));
    let newestAnswer = nothingYet();
    setSaid((before) => [...before, { key, role: "assistant", text: "", answer: newestAnswer, state: "coming", model }]);
    const body = {
      model,
      messages: [...(system.trim() ? [{ role: "system", content: system.trim() }] : []), ...messages],
      stream: true,
      stream_options: { include_usage: true },
      ...fields,
    };
    const headers = { "X-Context-Mode": isHistory ? "resend" : "append", "X-Context-Events": "chunk", "X-Context-Detail": "full" };
    if (current.current && !isHistory) headers["X-Conversation-Id"] = current.current;
    if (policy) headers["X-Context-Policy"] = policy;
    let end;
    try {
      const answer = await ask(body, headers, stopper.signal, (so_far, isEvent) => {
        newestAnswer = so_far;
        moved(so_far.conversation);
        if (isEvent) announceCompaction(so_far.compaction);
        draw(so_far, isEvent);
      });
      end = { state: "whole" };
      setContext(answer.context ?? null);
      announce(`${model} answered: ${answer.text || answer.refusal || "a call of a tool"}`);
    } catch (failure) {
      const isStopped = failure.name === "AbortError";
      end = isStopped ? { state: "stopped" } : { state: "failed", error: failure };
      announce(isStopped ? "Stopped." : "");
    }
    draw.end();
    const shown = newestAnswer;
    setSaid((before) => replaced(before, key, { ...end, answer: { ...shown }, text: shown.text }));
    running.current = null;
    setBusy(false);
    if (current.current) await settle(end.state, shown);
  }

  const told = useRef("");
  function announceCompaction(compaction) {
    if (!compaction || told.current === compaction.type) return;
    told.current = compaction.type;
    if (compaction.type === "running") announce("Compacting: older turns are being summarized.");
    else announce(compaction.type === "failed" ? "The compaction failed; the answer goes on without." : "Compacted.");
  }

  /** Take over how the newest messages are stored, and where the next request would begin. */
  async function settle(state, answer) {
    told.current = "";
    let rows = [];
    for (const ms of state === "whole" ? [0] : STORED_AFTER_MS) {
      if (ms) await new Promise((wake) => setTimeout(wake, ms));
      try {
        const { total } = await stretch(current.current, 0, 1);
        const { data } = await stretch(current.current, Math.max(0, total - SHOWN), SHOWN);
        rows = data;
        const last = data.at(-1);
        setSaid((before) => (before.some((one) => one.state === "coming") ? before : settled(before, data)));
        if (state === "whole" || (last?.role === "assistant" && (!answer.text || answer.text.startsWith(last.text.slice(0, 40))))) break;
      } catch {
        return;
      }
    }
    if (state !== "whole") setContext(await preview(current.current, rows));
  }

  const send = useCallback((text) => {
    setSaid((before) => [...before.filter((one) => one.state !== "failed" || one.text), { key: `question ${Date.now()}`, role: "user", text }]);
    return request([{ role: "user", content: text }]);
  }, [options]);

  /** Have the last question answered once more: as a retry where there is no answer, else as a branch. */
  async function again() {
    const at = said.findLastIndex((one) => one.role === "user");
    if (at < 0) return;
    const question = said[at];
    const after = said[at + 1];
    const hasAnswer = Boolean(after && (after.row || after.text));
    if (!hasAnswer || !current.current) {
      setSaid((before) => before.slice(0, at + 1));
      await request([{ role: "user", content: question.text }]);
      return;
    }
    const messages = await historyTo(question).catch(() => null);
    if (messages === null) {
      setError(new Error("This answer cannot be asked for again: the conversation holds attachments, very long messages or erased ones."));
      return;
    }
    setSaid((before) => before.slice(0, at + 1));
    await request(messages, { isHistory: true });
  }

  /** All that was said up to a question, as a client would send it; null where that cannot be told. */
  async function historyTo(question) {
    if (question.row) return historyBefore(current.current, question.row.seq + 1);
    const { messages } = await newest(current.current);
    const row = messages.findLast((one) => one.role === "user" && one.text === question.text);
    return row ? historyBefore(current.current, row.seq + 1) : null;
  }

  const newestAgain = useRef(again);
  newestAgain.current = again;
  const askAgain = useCallback(() => newestAgain.current(), []);
  const stop = useCallback(() => running.current?.abort(), []);
  return { id, said, context, error, isLoading, isBusy, announced, send, stop, again: askAgain, older, reopen: () => open(current.current, new AbortController().signal) };
}

function fromRow(row) {
  return { key: row.id, role: row.role, text: row.text, row, state: row.incomplete ? "stopped" : "whole" };
}

function replaced(said, key, change) {
  return said.map((one) => (one.key === key ? { ...one, ...change } : one));
}

/** What is shown with what is stored of it: the last of the one belong to the last of the other, role by role. */
function settled(said, rows) {
  const known = new Set(said.flatMap((one) => (one.row ? [one.row.seq] : [])));
  const fresh = rows.filter((row) => !known.has(row.seq));
  return said.map((one) => {
    if (one.row || one.state === "failed") return one;
    const at = fresh.findIndex((row) => row.role === one.role && (row.role !== "user" || row.text === one.text));
    return at < 0 ? one : { ...one, row: fresh.splice(0, at + 1).at(-1) };
  });
}

/** Calls `draw` at most every so often, the longer the text the more rarely. */
function throttled(draw) {
  let timer = null;
  let newestAnswer = null;
  const flush = () => {
    timer = null;
    draw(newestAnswer);
  };
  const come = (answer, isNow) => {
    newestAnswer = answer;
    if (isNow) {
      clearTimeout(timer);
      flush();
    } else {
      timer ??= setTimeout(flush, answer.text.length > SLOW_CHARS ? SLOW_DRAW_MS : DRAW_MS);
    }
  };
  come.end = () => clearTimeout(timer);
  return come;
}
return { useTalk: useTalk };
})();
const $js_pages_conversation_place = (() => { // js/pages/conversation/place.js
// Where a conversation is in the API, what it is called, and what may be done with it.
const { useEffect: useEffect } = $js_lib;
const { exported: exported, upload: upload } = $js_api;

/** The address of something in the API below a conversation. */
const placeOf = (id, ...rest) => ["v1/conversations", ...[id, ...rest].map(encodeURIComponent)].join("/");

/** Whether who looks may change things. */
const mayManage = (session) => session.scopes.includes("manage");

/** Whether who looks may write into a conversation: an operator sees those of all tenants, and writes into none of them. */
const isOwn = (session, record) => !session.operator || record.tenant === session.tenant;

/** Copy a conversation into the tenant of who looks. @returns {Promise<string>} the copy's id */
async function copyConversation(id) {
  const copies = await upload("v1/conversations/import", await exported(placeOf(id, "export")), { query: { format: "jsonl" } });
  return copies.data[0].id;
}

/** What a conversation is called, by its record with `include[]=title`: as the gateway tells it, or the client's id. */
const titleOf = (record) => record.title ?? record.external_id ?? "Untitled";

/** The same, in the name of the page too. */
function useTitle(record) {
  const title = titleOf(record);
  useEffect(() => {
    document.title = `${title} · Concertina`;
  }, [title]);
  return title;
}
return { placeOf: placeOf, mayManage: mayManage, isOwn: isOwn, copyConversation: copyConversation, titleOf: titleOf, useTitle: useTitle };
})();
const $js_ui_elapsed = (() => { // js/ui/elapsed.js
// How long something has been going on.
const { html: html, useEffect: useEffect, useState: useState } = $js_lib;
const { duration: duration } = $js_format;

/** @param {{since: number}} props  milliseconds, as of `Date.now()` */
function Elapsed({ since }) {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 250);
    return () => clearInterval(timer);
  }, []);
  const seconds = Math.max(0, (now - since) / 1000);
  return html`<span class="number soft" aria-hidden="true">${seconds < 60 ? `${seconds.toFixed(1)} s` : duration(seconds)}</span>`;
}
return { Elapsed: Elapsed };
})();
const $vendor_marked = (() => { // vendor/marked.js
/**
 * marked v18.2.1 - a markdown parser
 * Copyright (c) 2018-2026, MarkedJS. (MIT License)
 * Copyright (c) 2011-2018, Christopher Jeffrey. (MIT License)
 * https://github.com/markedjs/marked
 */

/**
 * DO NOT EDIT THIS FILE
 * The code in this file is generated from files in ./src/
 */

function G(){return{async:!1,breaks:!1,extensions:null,gfm:!0,hooks:null,pedantic:!1,renderer:null,silent:!1,tokenizer:null,walkTokens:null}}var S=G();function ue(l){S=l}var q={exec:()=>null};function D(l){let e=[];return t=>{let n=Math.max(0,Math.min(3,t-1)),r=e[n];return r||(r=l(n),e[n]=r),r}}function g(l,e=""){let t=typeof l=="string"?l:l.source,n={replace:(r,s)=>{let o=typeof s=="string"?s:s.source;return o=o.replace(O.caret,"$1"),t=t.replace(r,o),n},getRegex:()=>new RegExp(t,e)};return n}var _e=((l="")=>{try{return!!new RegExp("(?<=1)(?<!1)"+l)}catch{return!1}})(),O={codeRemoveIndent:/^(?: {0,3}\t| {1,4})/gm,listInterruptsParagraph:/^ {0,3}(?:[*+-]|1[.)])[ \t]+[^ \t\n]/,outputLinkReplace:/\\([\[\]])/g,indentCodeCompensation:/^(\s+)(?:```)/,beginningSpace:/^\s+/,endingHash:/#$/,startingSpaceChar:/^ /,endingSpaceChar:/ $/,endingSpaceTabChar:/[ \t]$/,nonSpaceChar:/[^ ]/,newLineCharGlobal:/\n/g,tabCharGlobal:/\t/g,leadingSpaceTab:/^[ \t]+/,multipleSpaceGlobal:/\s+/g,blankLine:/^[ \t]*$/,doubleBlankLine:/\n[ \t]*\n[ \t]*$/,blockquoteStart:/^ {0,3}>/,blockquoteSetextReplace:/\n {0,3}((?:=+|-+)[ \t]*)(?=\n|$)/g,blockquoteSetextReplace2:/^ {0,3}>[ \t]?/gm,blockquoteMarkerWhitespace:/^( {0,3}>)(\t[ \t]*)/gm,nestedBlockMarker:/^ {0,3}(?:(?:[*+-]|\d{1,9}[.)])(?: |$)|> ?)/,listReplaceNesting:/^ {1,4}(?=( {4})*[^ ])/g,listIsTask:/^\[[ xX]\][ \t]+\S/,listReplaceTask:/^\[[ xX]\][ \t]+/,listTaskCheckbox:/\[[ xX]\]/,anyLine:/\n.*\n/,hrefBrackets:/^<(.*)>$/,tableDelimiter:/[:|]/,tableAlignChars:/^\||\| *$/g,tableRowBlankLine:/\n[ \t]*$/,tableAlignRight:/^ *-+: *$/,tableAlignCenter:/^ *:-+: *$/,tableAlignLeft:/^ *:-+ *$/,startATag:/^<a /i,endATag:/^<\/a>/i,startPreScriptTag:/^<(pre|code|kbd|script)(\s|>)/i,endPreScriptTag:/^<\/(pre|code|kbd|script)(\s|>)/i,startAngleBracket:/^</,endAngleBracket:/>$/,pedanticHrefTitle:/^([^'"]*[^\s])\s+(['"])(.*)\2/,unicodeAlphaNumeric:/[\p{L}\p{N}]/u,numericCharacterReference:/&#(?:(\d{1,7})|[Xx]([A-Fa-f0-9]{1,6}));/,numericCharacterReferenceOrAmpersand:/&#(?:(\d{1,7})|[Xx]([A-Fa-f0-9]{1,6}));|&(?!(#\d{1,7}|#[Xx][a-fA-F0-9]{1,6}|\w+);)/g,escapeTest:/[&<>"']/,escapeReplace:/[&<>"']/g,escapeTestNoEncode:/[<>"']|&(?!(#\d{1,7}|#[Xx][a-fA-F0-9]{1,6}|\w+);)/,escapeReplaceNoEncode:/[<>"']|&(?!(#\d{1,7}|#[Xx][a-fA-F0-9]{1,6}|\w+);)/g,caret:/(^|[^\[])\^/g,percentDecode:/%25/g,findPipe:/\|/g,splitPipe:/ \|/,slashPipe:/\\\|/g,carriageReturn:/\r\n|\r/g,spaceLine:/^ +$/gm,notSpaceStart:/^\S*/,endingNewline:/\n$/,listItemRegex:l=>new RegExp(`^( {0,3}${l})((?:[	 ][^\\n]*)?(?:\\n|$))`),nextBulletRegex:D(l=>new RegExp(`^ {0,${l}}(?:[*+-]|\\d{1,9}[.)])((?:[ 	][^\\n]*)?(?:\\n|$))`)),hrRegex:D(l=>new RegExp(`^ {0,${l}}((?:-[ 	]*){3,}|(?:_[ 	]*){3,}|(?:\\*[ 	]*){3,})(?:\\n+|$)`)),fencesBeginRegex:D(l=>new RegExp(`^ {0,${l}}(?:\`\`\`|~~~)`)),headingBeginRegex:D(l=>new RegExp(`^ {0,${l}}#{1,6}(?:\\s|$)`)),pedanticHeadingBeginRegex:D(l=>new RegExp(`^ {0,${l}}#`)),htmlBeginRegex:D(l=>new RegExp(`^ {0,${l}}(?:</?(?:${he})(?:[ \\t]+|$|/?>)|<(?:(?:script|pre|style|textarea)(?:[\\s>]|$)|!--)|<\\?|<![A-Za-z]|<!\\[CDATA\\[)`,"i")),blockquoteBeginRegex:D(l=>new RegExp(`^ {0,${l}}>`)),nestedContainerMarkers:/^(?: {0,3}(?:(?:[*+-]|\d{1,9}[.)])[ \t]+|>[ \t]?))+/},Ge=/^(?:[ \t]*(?:\n|$))+/,Ne=/^((?: {4}| {0,3}\t)[^\n]+(?:\n(?:[ \t]*(?:\n|$))*)?)+/,Fe=/^ {0,3}(`{3,}(?=[^`\n]*(?:\n|$))|~{3,})([^\n]*)(?:\n|$)(?:|([\s\S]*?)(?:\n|$))(?: {0,3}(?:(?=`)\1`*|(?=~)\1~*) *(?=\n|$)|$)/,V=/^ {0,3}((?:-[\t ]*){3,}|(?:_[ \t]*){3,}|(?:\*[ \t]*){3,})(?:\n+|$)/,Qe=/^ {0,3}(#{1,6})(?=\s|$)(.*)(?:\n+|$)/,ce=/ {0,3}(?:[*+-]|\d{1,9}[.)])/,he="address|article|aside|base|basefont|blockquote|body|caption|center|col|colgroup|dd|details|dialog|dir|div|dl|dt|fieldset|figcaption|figure|footer|form|frame|frameset|h[1-6]|head|header|hr|html|iframe|legend|li|link|main|menu|menuitem|meta|nav|noframes|ol|optgroup|option|p|param|search|section|summary|table|tbody|td|tfoot|th|thead|title|tr|track|ul",J=g(" {0,3}(?:</?(?:tag)(?:[ \\t]+|\\n|/?>)|<(?:(?:script|pre|style|textarea)(?:[\\s>]|$)|!--)|<\\?|<![A-Za-z]|<!\\[CDATA\\[)").replace("tag",he).getRegex(),$e=/^(?!bull |blockCode|fences|blockquote|heading|html|table)((?:.|\n(?!\s*?\n|bull |fences|blockquote|heading|hr|html|table))+?)\n {0,3}(=+|-+)[ \t]*(?:\n+|$)/,Le=g($e).replace(/bull/g,ce).replace(/blockCode/g,/(?: {4}| {0,3}\t)/).replace(/fences/g,/ {0,3}(?:`{3,}|~{3,})/).replace(/blockquote/g,/ {0,3}>/).replace(/heading/g,/ {0,3}#{1,6}(?:\s|$)/).replace(/hr/g,/ {0,3}(?:(?:-[\t ]*){3,}|(?:_[ \t]*){3,}|(?:\*[ \t]*){3,})(?:\n+|$)/).replace(/\|table/g,"").replace(/html/g,J).getRegex(),We=g($e).replace(/bull/g,ce).replace(/blockCode/g,/(?: {4}| {0,3}\t)/).replace(/fences/g,/ {0,3}(?:`{3,}|~{3,})/).replace(/blockquote/g,/ {0,3}>/).replace(/heading/g,/ {0,3}#{1,6}(?:\s|$)/).replace(/hr/g,/ {0,3}(?:(?:-[\t ]*){3,}|(?:_[ \t]*){3,}|(?:\*[ \t]*){3,})(?:\n+|$)/).replace(/table/g,/ {0,3}\|?(?:[:\- ]*\|)+[\:\- ]*\n/).replace(/html/g,J).getRegex(),de=/^([^\n]+(?:\n(?!hr|heading|lheading|blockquote|fences|list|html|table|[ \t]+\n)[^\n]+)*)/,Ue=/^[^\n]+/,ge=/(?!\s*\])(?:\\[\s\S]|[^\[\]\\\n]|\n(?![ \t]*\n))+/,Ke=g(/^ {0,3}\[(label)\]: *(?:\n[ \t]*)?([^<\s][^\s]*|<(?:\\.|[^\n<>\\])*>)(?:(?: +(?:\n[ \t]*)?| *\n[ \t]*)(title))? *(?:\n+|$)/).replace("label",ge).replace("title",/(?:"(?:\\[\s\S]|[^"\\])*"|'(?:\\[\s\S]|[^'\\\n]|\n(?!\n))*'|\((?:\\[\s\S]|[^()\\])*\))/).getRegex(),Xe=g(/^(bull)([ \t][^\n]*?)?(?:\n|$)/).replace(/bull/g,ce).getRegex(),ke=/<!--(?:-?>|[\s\S]*?(?:-->|$))/,Ve=g("^ {0,3}(?:<(script|pre|style|textarea)[\\s>][\\s\\S]*?(?:</\\1>[^\\n]*\\n*|$)|comment[^\\n]*(\\n+|$)|<\\?[\\s\\S]*?(?:\\?>[^\\n]*\\n*|$)|<![A-Z][\\s\\S]*?(?:>[^\\n]*\\n*|$)|<!\\[CDATA\\[[\\s\\S]*?(?:\\]\\]>[^\\n]*\\n*|$)|</?(tag)(?:[ \\t]+|\\n|/?>|$)[\\s\\S]*?(?:(?:\\n[ 	]*)+\\n|$)|<(?!(?:script|pre|style|textarea)(?![a-z0-9-]))([a-z][a-z0-9-]*)(?:attribute)*?[ \\t]*/?>(?=[ \\t]*(?:\\n|$))[\\s\\S]*?(?:(?:\\n[ 	]*)+\\n|$)|</[a-z][a-z0-9-]*\\s*>(?=[ \\t]*(?:\\n|$))[\\s\\S]*?(?:(?:\\n[ 	]*)+\\n|$))","i").replace("comment",ke).replace("tag",he).replace("attribute",/[ \t]+[a-zA-Z:_][\w.:-]*(?:[ \t]*=[ \t]*"[^"\n]*"|[ \t]*=[ \t]*'[^'\n]*'|[ \t]*=[ \t]*[^\s"'=<>`]+)?/).getRegex(),Ce=l=>g(de).replace("hr",V).replace("heading"," {0,3}#{1,6}(?:\\s|$)").replace("|lheading","").replace("|table","").replace("blockquote"," {0,3}>").replace("fences"," {0,3}(?:`{3,}(?=[^`\\n]*(?:\\n|$))|~~~)[^\\n]*(?:\\n|$)").replace("list",l).replace("html",J).getRegex(),Je=Ce(/ {0,3}(?:[*+-]|1[.)])[ \t]+[^ \t\n]/),Ye=Ce(/ {0,3}(?:[*+-]|\d{1,9}[.)])(?:[ \t]|\n|$)/),et=g(/^( {0,3}> ?(?:(?![ \t]*(?:\n|$))(paragraph)|[^\n]*)(?:\n|$))+/).replace("paragraph",Ye).getRegex(),fe={blockquote:et,code:Ne,def:Ke,fences:Fe,heading:Qe,hr:V,html:Ve,lheading:Le,list:Xe,newline:Ge,paragraph:Je,table:q,text:Ue},Pe=g("^ *([^\\n ].*)\\n {0,3}((?:\\| *)?:?-+:? *(?:\\| *:?-+:? *)*(?:\\| *)?)(?:\\n((?:(?! *\\n|hr|heading|blockquote|code|fences|list|html).*(?:\\n|$))*)\\n*|$)").replace("hr",V).replace("heading"," {0,3}#{1,6}(?:\\s|$)").replace("blockquote"," {0,3}>").replace("code","(?: {4}| {0,3}	)[^\\n]").replace("fences"," {0,3}(?:`{3,}(?=[^`\\n]*(?:\\n|$))|~~~)[^\\n]*(?:\\n|$)").replace("list"," {0,3}(?:[*+-]|1[.)])[ \\t]").replace("html",J).getRegex(),tt={...fe,lheading:We,table:Pe,paragraph:g(de).replace("hr",V).replace("heading"," {0,3}#{1,6}(?:\\s|$)").replace("|lheading","").replace("table",Pe).replace("blockquote"," {0,3}>").replace("fences"," {0,3}(?:`{3,}(?=[^`\\n]*(?:\\n|$))|~~~)[^\\n]*(?:\\n|$)").replace("list"," {0,3}(?:[*+-]|1[.)])[ \\t]+[^ \\t\\n]").replace("html",J).getRegex()},nt={...fe,html:g(`^ *(?:comment(?: *\\n|\\s*$)|<(tag)[\\s\\S]+?</\\1>(?: *\\n{2,}|\\s*$)|<tag(?:"[^"]*"|'[^']*'|\\s[^'"/>\\s]*)*?/?>(?: *\\n{2,}|\\s*$))`).replace("comment",ke).replace(/tag/g,"(?!(?:a|em|strong|small|s|cite|q|dfn|abbr|data|time|code|var|samp|kbd|sub|sup|i|b|u|mark|ruby|rt|rp|bdi|bdo|span|br|wbr|ins|del|img)\\b)\\w+(?!:|[^\\w\\s@]*@)\\b").getRegex(),def:/^ *\[([^\]]+)\]: *<?([^\s>]+)>?(?: +(["(][^\n]+[")]))? *(?:\n+|$)/,heading:/^(#{1,6})(.*)(?:\n+|$)/,fences:q,lheading:/^(.+?)\n {0,3}(=+|-+) *(?:\n+|$)/,paragraph:g(de).replace("hr",V).replace("heading",` *#{1,6} *[^
]`).replace("|table","").replace("blockquote"," {0,3}>").replace("|fences","").replace("|list","").replace("|html","").replace("|tag","").replace("lheading",Le).getRegex()},rt=/^\\([!"#$%&'()*+,\-./:;<=>?@\[\]\\^_`{|}~])/,st=/^(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)/,Ie=/^( {2,}|\\)\n(?!\s*$)[ \t]*/,it=/^(`+|[^`])(?:(?= {2,}\n)|[\s\S]*?(?:(?=[\\<!\[`*_]|\b_|$)|[^ ](?= {2,}\n)))/,L=/[\p{P}\p{S}]/u,N=/[\s\p{P}\p{S}]/u,Y=/[^\s\p{P}\p{S}]/u,ot=g(/^((?![*_])punctSpace)/,"u").replace(/punctSpace/g,N).getRegex(),at=/[\p{Pi}\p{Ps}"']/u,Ae=/(?!~)[\p{P}\p{S}]/u,lt=/(?!~)[\s\p{P}\p{S}]/u,ut=/(?:[^\s\p{P}\p{S}]|~)/u,pt=g(/link|precode-code|html/,"g").replace("link",/\[(?:[^\[\]`]|(?<a>`+)[^`]+\k<a>(?!`))*?\]\((?:\\[\s\S]|[^\\\(\)]|\((?:\\[\s\S]|[^\\\(\)])*\))*\)/).replace("precode-",_e?"(?<!`)()":"(^^|[^`])").replace("code",/(?<b>`+)[^`]+\k<b>(?!`)/).replace("html",/<(?! )[^<>]*?>/).getRegex(),Ee=/^(?:\*+(?:((?!\*)punct)|([^\s*]))?)|^_+(?:((?!_)punct)|([^\s_]))?/,ct=g(Ee,"u").replace(/punct/g,L).getRegex(),ht=g(Ee,"u").replace(/punct/g,Ae).getRegex(),dt=/^(?:\*+(?:((?!\*)(?!openQuote)punct)|([^\s*]))?)|^_+(?:((?!_)(?!openQuote)punct)|([^\s_]))?/,gt=g(dt,"u").replace(/openQuote/g,at).replace(/punct/g,L).getRegex(),ze="^[^_*]*?__[^_*]*?\\*[^_*]*?(?=__)|[^*]+(?=[^*])|(?!\\*)punct(\\*+)(?=[\\s]|$)|notPunctSpace(\\*+)(?!\\*)(?=punctSpace|$)|(?!\\*)punctSpace(\\*+)(?=notPunctSpace)|[\\s](\\*+)(?!\\*)(?=punct)|(?!\\*)punct(\\*+)(?!\\*)(?=punct)|notPunctSpace(\\*+)(?=notPunctSpace)",kt=g(ze,"gu").replace(/notPunctSpace/g,Y).replace(/punctSpace/g,N).replace(/punct/g,L).getRegex(),ft=g(ze,"gu").replace(/notPunctSpace/g,ut).replace(/punctSpace/g,lt).replace(/punct/g,Ae).getRegex(),mt="^[^_*]*?__[^_*]*?\\*[^_*]*?(?=__)|[^*]+(?=[^*])|(?!\\*)punct(\\*+)(?=[\\s]|$)|notPunctSpace(\\*+)(?!\\*)(?=punctSpace|$)|(?!\\*)[\\s](\\*+)(?=notPunctSpace)|[\\s](\\*+)(?!\\*)(?=punct)|(?!\\*)punct(\\*+)(?!\\*)(?=punct)|(?:(?!\\*)punct|notPunctSpace)(\\*+)(?!\\*)(?=notPunctSpace)",xt=g(mt,"gu").replace(/notPunctSpace/g,Y).replace(/punctSpace/g,N).replace(/punct/g,L).getRegex(),bt=g("^[^_*]*?\\*\\*[^_*]*?_[^_*]*?(?=\\*\\*)|[^_]+(?=[^_])|(?!_)punct(_+)(?=[\\s]|$)|notPunctSpace(_+)(?!_)(?=punctSpace|$)|(?!_)punctSpace(_+)(?=notPunctSpace)|[\\s](_+)(?!_)(?=punct)|(?!_)punct(_+)(?!_)(?=punct)","gu").replace(/notPunctSpace/g,Y).replace(/punctSpace/g,N).replace(/punct/g,L).getRegex(),Rt="^[^_*]*?\\*\\*[^_*]*?_[^_*]*?(?=\\*\\*)|[^_]+(?=[^_])|(?!_)punct(_+)(?=[\\s]|$)|notPunctSpace(_+)(?!_)(?=punctSpace|$)|(?!_)[\\s](_+)(?=notPunctSpace)|[\\s](_+)(?!_)(?=punct)|(?!_)punct(_+)(?!_)(?=punct)|(?:(?!_)punct|notPunctSpace)(_+)(?!_)(?=notPunctSpace)",Tt=g(Rt,"gu").replace(/notPunctSpace/g,Y).replace(/punctSpace/g,N).replace(/punct/g,L).getRegex(),Ot=g(/^~~?(?:((?!~)punct)|[^\s~])/,"u").replace(/punct/g,L).getRegex(),wt="^[^~]+(?=[^~])|(?!~)punct(~~?)(?=[\\s]|$)|notPunctSpace(~~?)(?!~)(?=punctSpace|$)|(?!~)punctSpace(~~?)(?=notPunctSpace)|[\\s](~~?)(?!~)(?=punct)|(?!~)punct(~~?)(?!~)(?=punct)|notPunctSpace(~~?)(?=notPunctSpace)",Pt=g(wt,"gu").replace(/notPunctSpace/g,Y).replace(/punctSpace/g,N).replace(/punct/g,L).getRegex(),yt=g(/\\(punct)/,"gu").replace(/punct/g,L).getRegex(),St=g(/(`+)(?:[^`]|[^`][\s\S]*?[^`])\1(?!`)|`+|\\(punct)/,"gu").replace(/punct/g,L).getRegex(),_t=g(/^<(scheme:[^\s\x00-\x1f<>]*|email)>/).replace("scheme",/[a-zA-Z][a-zA-Z0-9+.-]{1,31}/).replace("email",/[a-zA-Z0-9.!#$%&'*+/=?^_`{|}~-]+(@)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)+(?![-_])/).getRegex(),$t=g(ke).replace("(?:-->|$)","-->").getRegex(),Lt=g("^comment|^</[a-zA-Z][a-zA-Z0-9-]*\\s*>|^<[a-zA-Z][a-zA-Z0-9-]*(?:attribute)*?\\s*/?>|^<\\?[\\s\\S]*?\\?>|^<![a-zA-Z]+\\s[\\s\\S]*?>|^<!\\[CDATA\\[[\\s\\S]*?\\]\\]>").replace("comment",$t).replace("attribute",/\s+[a-zA-Z:_][\w.:-]*(?:\s*=\s*"[^"]*"|\s*=\s*'[^']*'|\s*=\s*[^\s"'=<>`]+)?/).getRegex(),Me=/\[(?:\\[\s\S]|[^\[\]\\])*\]/,ie=g(/(?:\[(?:brackets|\\[\s\S]|[^\[\]\\])*\]|\\[\s\S]|`+(?!`)[^`]*?`+(?!`)|``+(?=\])|[^\[\]\\`])*?/).replace("brackets",Me).getRegex(),Ct=g(/^!?\[(label)\]\([ \t\n]*(href)(?:(?:[ \t]+(?:\n[ \t]*)?|\n[ \t]*)(title))?[ \t\n]*\)/).replace("label",ie).replace("href",/<(?:\\.|[^\n<>\\])*>|(?!<)[^ \t\n\x00-\x1f]+|(?=\))/).replace("title",/"(?:\\[\s\S]|[^"\\])*"|'(?:\\[\s\S]|[^'\\])*'|\((?:\\[\s\S]|[^)\\])*\)/).getRegex(),It=g(/^!?\[(label)\]\[(ref)\]/).replace("label",ie).replace("ref",ge).getRegex(),At=g(/^!?\[(ref)\](?:\[\])?/).replace("ref",ge).getRegex(),ye=/(?!\s*\])(?:\\[\s\S]|[^\[\]\\]){1,999}/,Et=g(/(?:[^\[\]\\`]*(?:\[(?:brackets|\\[\s\S]|[^\[\]\\])*\]|\\[\s\S]|`+(?!`)[^`]*?`+(?!`)|``+(?=\]))){0,999}?[^\[\]\\`]*?/).replace("brackets",Me).getRegex(),zt=g("reflink|nolink(?!\\()","g").replace("reflink",g(/^!?\[(label)\]\[(ref)\]/).replace("label",Et).replace("ref",ye).getRegex()).replace("nolink",g(/^!?\[(ref)\](?:\[\])?/).replace("ref",ye).getRegex()).getRegex(),Se=/[hH][tT][tT][pP][sS]?|[fF][tT][pP]/,Mt=/[A-Za-z0-9._+-]+@[a-zA-Z0-9-_]+(?:\.[a-zA-Z0-9-_]*[a-zA-Z0-9])+(?![\w-])/,Bt=g(/(?:mailto:email|xmpp:email(?:\/[A-Za-z0-9@.]+)?)/).replace(/email/g,Mt).getRegex(),me={_backpedal:q,anyPunctuation:yt,anyPunctuationOutsideCode:St,autolink:_t,blockSkip:pt,br:Ie,code:st,del:q,delLDelim:q,delRDelim:q,emStrongLDelim:ct,emStrongRDelimAst:kt,emStrongRDelimUnd:bt,escape:rt,link:Ct,nolink:At,punctuation:ot,reflink:It,reflinkSearch:zt,tag:Lt,text:it,url:q},Dt={...me,emStrongLDelim:gt,emStrongRDelimAst:xt,emStrongRDelimUnd:Tt,link:g(/^!?\[(label)\]\((.*?)\)/).replace("label",ie).getRegex(),reflink:g(/^!?\[(label)\]\s*\[([^\]]*)\]/).replace("label",ie).getRegex()},pe={...me,emStrongRDelimAst:ft,emStrongLDelim:ht,delLDelim:Ot,delRDelim:Pt,url:g(/^emailProtocol|^((?:protocol):\/\/|www\.)(?:[a-zA-Z0-9\-]+\.?)+[^\s<]*|^email/).replace("emailProtocol",Bt).replace("protocol",Se).replace("email",/[A-Za-z0-9._+-]+(@)[a-zA-Z0-9-_]+(?:\.[a-zA-Z0-9-_]*[a-zA-Z0-9])+(?![\w-])/).getRegex(),_backpedal:/(?:[^?!.,:;*_'"~()&]+|\([^)]*\)|&(?![a-zA-Z0-9]+;$)|[?!.,:;*_'"~)]+(?!$))+/,del:/^(~~?)(?=[^\s~])((?:\\[\s\S]|[^\\])*?(?:\\[\s\S]|[^\s~\\]))\1(?=[^~]|$)/,text:g(/^(?:[^a-zA-Z0-9](?=emailProtocol)|(`+|~+|[^`~])(?:(?=[`~])|(?= {2,}\n)|(?=[a-zA-Z0-9.!#$%&'*+\/=?_`{\|}~-]+@)|[\s\S]*?(?:(?=[\\<!\[`*~_]|\b_|protocol:\/\/|wwwStart|$)|[^ ](?= {2,}\n)|[^a-zA-Z0-9](?=emailProtocol)|[^a-zA-Z0-9.!#$%&'*+\/=?_`{\|}~-](?=[a-zA-Z0-9.!#$%&'*+\/=?_`{\|}~-]+@))))/).replace("protocol",Se).replace(/emailProtocol/g,/(?:mailto|xmpp):/).replace("wwwStart",_e?"(?<![^\\s*_~(])www\\.":"www\\.").getRegex()},qt={...pe,br:g(Ie).replace("{2,}","*").getRegex(),text:g(pe.text).replace("\\b_","\\b_| {2,}\\n").replace(/\{2,\}/g,"*").getRegex()},ee={normal:fe,gfm:tt,pedantic:nt},F={normal:me,gfm:pe,breaks:qt,pedantic:Dt};var vt={"&":"&amp;","<":"&lt;",">":"&gt;",'"':"&quot;","'":"&#39;"},Be=l=>vt[l];function y(l,e){if(e){if(O.escapeTest.test(l))return l.replace(O.escapeReplace,Be)}else if(O.escapeTestNoEncode.test(l))return l.replace(O.escapeReplaceNoEncode,Be);return l}function De(l){return O.numericCharacterReference.test(l)?l.replace(O.numericCharacterReferenceOrAmpersand,(e,t,n)=>{if(t===void 0&&n===void 0)return"&amp;";let r=t===void 0?Number.parseInt(n,16):Number.parseInt(t,10);return r===0||r>1114111||r>=55296&&r<=57343?"\uFFFD":r===38?"&amp;":String.fromCodePoint(r)}):l}function xe(l){try{l=encodeURI(l).replace(O.percentDecode,"%")}catch{return null}return l}function be(l,e){let t=l.replace(O.findPipe,(s,o,i)=>{let a=!1,c=o;for(;--c>=0&&i[c]==="\\";)a=!a;return a?"|":" |"}),n=t.split(O.splitPipe),r=0;if(n[0].trim()||n.shift(),n.length>0&&!n.at(-1)?.trim()&&n.pop(),e)if(n.length>e)n.splice(e);else for(;n.length<e;)n.push("");for(;r<n.length;r++)n[r]=n[r].trim().replace(O.slashPipe,"|");return n}function C(l,e,t){let n=l.length;if(n===0)return"";let r=0;for(;r<n;){let s=l.charAt(n-r-1);if(s===e&&!t)r++;else if(s!==e&&t)r++;else break}return l.slice(0,n-r)}function Re(l){let e=l.split(`
`),t=e.length-1;for(;t>=0&&O.blankLine.test(e[t]);)t--;return e.length-t<=2?l:e.slice(0,t+1).join(`
`)}function W(l){return l.trim().replace(O.multipleSpaceGlobal," ").toLowerCase().toUpperCase().toLowerCase()}function Te(l,e){if(l.indexOf(e[0])===-1&&l.indexOf(e[1])===-1)return-1;let t=0;for(let n=0;n<l.length;n++)if(l[n]==="\\")n++;else if(l[n]===e[0])t++;else if(l[n]===e[1]&&(t--,t<0))return n;return t>0?-2:-1}var Q=new WeakMap;function Oe(l){let e={"*":-1,_:-1},t=-1,n=l.length;for(let r=0;r<n;r++){let s=l[r];if(s!=="*"&&s!=="_"&&s!=="~")continue;let o=r===0?`
`:l[r-1],i=r+1;for(;i<n&&l[i]===s;)i++;o!==" "&&o!=="	"&&o!==`
`&&o!=="\r"&&o!=="\f"&&(s==="~"?t=r:e[s]=r),r=i-1}return{maskedSrc:l,lastPossibleEmStrongCloserIndex:e,lastPossibleDelCloserIndex:t}}function qe(l,e){let t=Oe(e),n=Q.get(l);n?n.push(t):Q.set(l,[t])}function ve(l){let e=Q.get(l);e&&(e.pop(),e.length===0&&Q.delete(l))}function oe(l,e,t){let n=Q.get(l)?.at(-1);return n&&n.maskedSrc===e?n.lastPossibleEmStrongCloserIndex[t]:Oe(e).lastPossibleEmStrongCloserIndex[t]}function ae(l,e){let t=Q.get(l)?.at(-1);return t&&t.maskedSrc===e?t.lastPossibleDelCloserIndex:Oe(e).lastPossibleDelCloserIndex}function te(l,e=0){let t=e,n="";for(let r of l)if(r==="	"){let s=4-t%4;n+=" ".repeat(s),t+=s}else n+=r,t++;return n}function Ht(l,e){let t="";for(let n=0;n<l.length;n++){if(l[n]==="`"){let r=e.inline.code.exec(l.slice(n));if(r){t+=r[0],n+=r[0].length-1;continue}}if(l[n]==="\\"&&(l[n+1]==="["||l[n+1]==="]")){t+=l[n+1],n++;continue}t+=l[n]}return t}function He(l,e,t,n,r){let s=e.href,o=e.title||null,i=Ht(l[1],r),a=l[0].charAt(0)==="!",c=n.state.inLink,u=n.state.linkEmitted,d=n.state.inRawBlock;n.state.inLink=!0,n.state.linkEmitted=!1;let h=n.inlineTokens(i),p=n.state.linkEmitted;if(n.state.linkEmitted=u,n.state.inLink=c,!a){if(p){n.state.inRawBlock=d;return}n.state.linkEmitted=!0}return{type:a?"image":"link",raw:t,href:s,title:o,text:i,tokens:h}}function Zt(l,e,t){let n=l.match(t.other.indentCodeCompensation);if(n===null)return e;let r=n[1];return e.split(`
`).map(s=>{let o=s.match(t.other.beginningSpace);if(o===null)return s;let[i]=o;return s.slice(Math.min(i.length,r.length))}).join(`
`)}function Ze(l,e,t,n){if(!e.includes("<"))return!1;for(let r=0;r<e.length;r++){if(e[r]==="\\"){r++;continue}if(e[r]==="`"){let i=n.inline.code.exec(e.slice(r));if(i){r+=i[0].length-1;continue}}if(e[r]!=="<")continue;let s=l.slice(t+r),o=n.inline.tag.exec(s)||n.inline.autolink.exec(s);if(o){if(o[0].length>e.length-r)return!0;r+=o[0].length-1}}return!1}var _=class{options;rules;lexer;constructor(e){this.options=e||S}space(e){let t=this.rules.block.newline.exec(e);if(t&&t[0].length>0)return{type:"space",raw:t[0]}}code(e){let t=this.rules.block.code.exec(e);if(t){let n=this.options.pedantic?t[0]:Re(t[0]),r=n.replace(this.rules.other.codeRemoveIndent,"");return{type:"code",raw:n,codeBlockStyle:"indented",text:r}}}fences(e){let t=this.rules.block.fences.exec(e);if(t){let n=t[0],r=Zt(n,t[3]||"",this.rules);return t[3]!==void 0&&(r===""||r.endsWith(`
`))&&(r+=`
`),{type:"code",raw:n,lang:t[2]?t[2].trim().replace(this.rules.inline.anyPunctuation,"$1"):t[2],text:r}}}heading(e){let t=this.rules.block.heading.exec(e);if(t){let n=t[2].trim();if(this.rules.other.endingHash.test(n)){let r=C(n,"#");(this.options.pedantic||!r||this.rules.other.endingSpaceTabChar.test(r))&&(n=r.trim())}return{type:"heading",raw:C(t[0],`
`),depth:t[1].length,text:n,tokens:this.lexer.inline(n)}}}hr(e){let t=this.rules.block.hr.exec(e);if(t)return{type:"hr",raw:C(t[0],`
`)}}blockquote(e){let t=this.rules.block.blockquote.exec(e);if(t){let n=C(t[0],`
`).split(`
`),r="",s="",o=[];for(;n.length>0;){let i=!1,a=[],c;for(c=0;c<n.length;c++)if(this.rules.other.blockquoteStart.test(n[c]))a.push(n[c]),i=!0;else if(!i)a.push(n[c]);else break;n=n.slice(c);let u=a.join(`
`),d=u.replace(this.rules.other.blockquoteMarkerWhitespace,(k,m,b)=>b.startsWith(" ")?m+" "+b.slice(1):m+te(b,m.length)).replace(this.rules.other.blockquoteSetextReplace,`
    $1`).replace(this.rules.other.blockquoteSetextReplace2,"");r=r?`${r}
${u}`:u,s=s?`${s}
${d}`:d;let h=this.lexer.state.top;if(this.lexer.state.top=!0,this.lexer.blockTokens(d,o,!0),this.lexer.state.top=h,n.length===0)break;let p=o.at(-1);if(p?.type==="code"||p?.type==="heading"||p?.type==="hr"||p?.type==="html"||p?.type==="table")break;if(p?.type==="blockquote"){let k=p,m=n.join(`
`),b=k.raw+`
`+m.replace(this.rules.other.blockquoteSetextReplace2,""),f=this.blockquote(b);o[o.length-1]=f;let R=b.substring(f.raw.length).replace(/^\n/,""),E=R?R.split(`
`).length:0,T=E?n.slice(0,-E):n;if(T.length>0&&(r=`${r}
${T.join(`
`)}`),s=s.substring(0,s.length-k.text.length)+f.text,n=n.slice(T.length),n.length>0&&this.rules.other.blockquoteStart.test(n[0]))continue;break}else if(p?.type==="list"){let k=p,m=k.raw+`
`+n.join(`
`),b=this.list(m);o[o.length-1]=b;let f=b.raw.length>k.raw.length?m.slice(k.raw.length+1,b.raw.length).split(`
`).length:0;if(f>0){let R=n.slice(0,f).join(`
`);r=`${r}
${R}`,s=`${s}
${R}`}if(n=n.slice(f),n.length>0&&!this.rules.other.blockquoteStart.test(n[0]))break;continue}}return{type:"blockquote",raw:r,tokens:o,text:s}}}list(e){let t=this.rules.block.list.exec(e);if(t){if(!this.options.pedantic&&this.lexer.state.lastToken?.type==="text"&&!this.rules.other.listInterruptsParagraph.test(e))return;let n=e,r=()=>n.length-e.length,s=t[1].trim(),o=s.length>1,i={type:"list",raw:"",ordered:o,start:o?+s.slice(0,-1):"",loose:!1,items:[]};s=o?`\\d{1,9}\\${s.slice(-1)}`:`\\${s}`,this.options.pedantic&&(s=o?s:"[*+-]");let a=this.rules.other.listItemRegex(s),c=!1;for(;e;){let h=!1,p="";if(!(t=a.exec(e))||this.rules.block.hr.test(e))break;let k=r();e=e.substring(t[0].length);let m=t[2].split(`
`,1)[0],b=t[1].length,f=this.options.pedantic?te(m,b):m.replace(this.rules.other.leadingSpaceTab,H=>te(H,b)),R=e.split(`
`,1)[0],E=!f.trim(),T=0;if(this.options.pedantic?(T=2,p=f.trimStart()):E?T=b+1:(T=f.search(this.rules.other.nonSpaceChar),T=T>4?1:T,p=f.slice(T),T+=b),E&&this.rules.other.blankLine.test(R)&&(e=e.substring(R.length+1),h=!0),!h){let H=this.rules.other.nextBulletRegex(T),K=this.rules.other.hrRegex(T),re=this.rules.other.fencesBeginRegex(T),B=this.options.pedantic?this.rules.other.pedanticHeadingBeginRegex(T):this.rules.other.headingBeginRegex(T),X=this.rules.other.htmlBeginRegex(T),se=this.rules.other.blockquoteBeginRegex(T),le=!1;for(;e;){let we=e.split(`
`,1)[0],Z;if(R=we,this.options.pedantic?(R=R.replace(this.rules.other.listReplaceNesting,"  "),Z=R):Z=R.replace(this.rules.other.leadingSpaceTab,$=>te($)),re.test(R)||B.test(R)||X.test(R)||se.test(R)||H.test(R)||K.test(R))break;if(Z.search(this.rules.other.nonSpaceChar)>=T||!R.trim())p+=`
`+Z.slice(T),le=!1;else{if(E)break;let $=f;if(!this.options.pedantic&&!p.includes(`
`)&&!f.includes("	")){let j;for(;!K.test($)&&(j=this.rules.other.nestedBlockMarker.exec($));)$=$.slice(j[0].length);if(!$.trim())break}if($.replace(this.rules.other.tabCharGlobal,"    ").search(this.rules.other.nonSpaceChar)>=4||re.test($)||B.test($)||X.test($)||K.test($))break;if(!this.options.pedantic&&!le){let j=f.replace(this.rules.other.nestedContainerMarkers,"");if(this.rules.block.fences.test(j)||this.rules.block.heading.test(j)||this.rules.block.hr.test(j))break}let je=!this.options.pedantic&&/^ {0,3}(?:=+|-+) *$/.test(R)&&this.rules.block.lheading.test(`${f}
${R}`)?`    ${Z.replace(/^ {0,3}/,"")}`:R;p+=`
`+je,le=!0}E=!R.trim(),e=e.substring(we.length+1),f=Z.slice(T)}}let U=n.slice(k,r());i.loose||(c?i.loose=!0:this.rules.other.doubleBlankLine.test(U)&&(c=!0)),i.items.push({type:"list_item",raw:U,task:!!this.options.gfm&&this.rules.other.listIsTask.test(p),loose:!1,text:p,tokens:[]})}let u=i.items.at(-1);if(u)u.raw=u.raw.trimEnd(),u.text=u.text.trimEnd();else return;i.raw=n.slice(0,r()).trimEnd();let d=[];for(let h of i.items)if(this.lexer.state.top=!1,d.push(this.lexer.inlineQueue.length),h.tokens=this.lexer.blockTokens(h.text,[]),!i.loose){let p=h.tokens.filter(m=>m.type==="space"),k=p.length>0&&p.some(m=>this.rules.other.anyLine.test(m.raw));i.loose=k}for(let h=0;h<i.items.length;h++){let p=i.items[h],k=p.tokens[0];if(p.task&&(k?.type==="text"||k?.type==="paragraph")){p.text=p.text.replace(this.rules.other.listReplaceTask,""),k.raw=k.raw.replace(this.rules.other.listReplaceTask,""),k.text=k.text.replace(this.rules.other.listReplaceTask,"");let m=this.lexer.inlineQueue;for(let f=d[h];f<m.length;f++)if(m[f].tokens===k.tokens){m[f].src=m[f].src.replace(this.rules.other.listReplaceTask,"");break}let b=this.rules.other.listTaskCheckbox.exec(p.raw);if(b){let f={type:"checkbox",raw:b[0]+" ",checked:b[0]!=="[ ]"};p.checked=f.checked,i.loose?p.tokens[0]&&["paragraph","text"].includes(p.tokens[0].type)&&"tokens"in p.tokens[0]&&p.tokens[0].tokens?(p.tokens[0].raw=f.raw+p.tokens[0].raw,p.tokens[0].text=f.raw+p.tokens[0].text,p.tokens[0].tokens.unshift(f)):p.tokens.unshift({type:"paragraph",raw:f.raw,text:f.raw,tokens:[f]}):p.tokens.unshift(f)}}else p.task&&(p.task=!1)}if(i.loose)for(let h of i.items){h.loose=!0;for(let p of h.tokens)p.type==="text"&&(p.type="paragraph")}return i}}html(e){let t=this.rules.block.html.exec(e);if(t){if(this.lexer.state.lastToken?.type==="paragraph"&&!this.rules.other.htmlBeginRegex(4).test(e))return;let n=Re(t[0]);return{type:"html",block:!0,raw:n,pre:t[1]==="pre"||t[1]==="script"||t[1]==="style",text:n}}}def(e){let t=this.rules.block.def.exec(e);if(t){if(!this.rules.other.startAngleBracket.test(t[2])&&Te(t[2],"()")!==-1)return;let n=W(t[1]),r=t[2]?t[2].replace(this.rules.other.hrefBrackets,"$1").replace(this.rules.inline.anyPunctuation,"$1"):"",s=t[3]?t[3].substring(1,t[3].length-1).replace(this.rules.inline.anyPunctuation,"$1"):t[3];return{type:"def",tag:n,raw:C(t[0],`
`),href:r,title:s}}}table(e){let t=this.rules.block.table.exec(e);if(!t||!this.rules.other.tableDelimiter.test(t[2]))return;let n=be(t[1]),r=t[2].replace(this.rules.other.tableAlignChars,"").split("|"),s=t[3]?.trim()?t[3].replace(this.rules.other.tableRowBlankLine,"").split(`
`):[],o={type:"table",raw:C(t[0],`
`),header:[],align:[],rows:[]};if(n.length===r.length){for(let i of r)this.rules.other.tableAlignRight.test(i)?o.align.push("right"):this.rules.other.tableAlignCenter.test(i)?o.align.push("center"):this.rules.other.tableAlignLeft.test(i)?o.align.push("left"):o.align.push(null);for(let i=0;i<n.length;i++)o.header.push({text:n[i],tokens:this.lexer.inline(n[i]),header:!0,align:o.align[i]});for(let i of s)o.rows.push(be(i,o.header.length).map((a,c)=>({text:a,tokens:this.lexer.inline(a),header:!1,align:o.align[c]})));return o}}lheading(e){let t=this.rules.block.lheading.exec(e);if(t){let n=t[1].trim();return{type:"heading",raw:C(t[0],`
`),depth:t[2].charAt(0)==="="?1:2,text:n,tokens:this.lexer.inline(n)}}}paragraph(e){let t=this.rules.block.paragraph.exec(e);if(t){let n=t[1].charAt(t[1].length-1)===`
`?t[1].slice(0,-1):t[1];return{type:"paragraph",raw:t[0],text:n,tokens:this.lexer.inline(n)}}}text(e){let t=this.rules.block.text.exec(e);if(t)return{type:"text",raw:t[0],text:t[0],tokens:this.lexer.inline(t[0])}}escape(e){if(e.charCodeAt(0)!==92)return;let t=this.rules.inline.escape.exec(e);if(t)return{type:"escape",raw:t[0],text:t[1]}}tag(e){if(e.charCodeAt(0)!==60)return;let t=this.rules.inline.tag.exec(e);if(t)return!this.lexer.state.inLink&&this.rules.other.startATag.test(t[0])?this.lexer.state.inLink=!0:this.lexer.state.inLink&&this.rules.other.endATag.test(t[0])&&(this.lexer.state.inLink=!1),!this.lexer.state.inRawBlock&&this.rules.other.startPreScriptTag.test(t[0])?this.lexer.state.inRawBlock=!0:this.lexer.state.inRawBlock&&this.rules.other.endPreScriptTag.test(t[0])&&(this.lexer.state.inRawBlock=!1),{type:"html",raw:t[0],inLink:this.lexer.state.inLink,inRawBlock:this.lexer.state.inRawBlock,block:!1,text:t[0]}}link(e){if(this.lexer.state.linkParenPossible===!1)return;let t=e.charCodeAt(0);if(t!==91&&t!==33)return;let n=this.rules.inline.link.exec(e);if(n){let r=n[0].charAt(0)==="!"?2:1;if(!this.options.pedantic&&Ze(e,n[1],r,this.rules))return;let s=n[2].trim();if(!this.options.pedantic&&this.rules.other.startAngleBracket.test(s)){if(!this.rules.other.endAngleBracket.test(s))return;let c=C(s.slice(0,-1),"\\");if((s.length-c.length)%2===0)return}else{let c=Te(n[2],"()");if(c===-2)return;if(c>-1){let d=(n[0].indexOf("!")===0?5:4)+n[1].length+c;n[2]=n[2].substring(0,c),n[0]=n[0].substring(0,d).trim(),n[3]=""}}let o=C(n[0].slice(0,-1),"\\");if((n[0].length-o.length)%2===0)return;let i=n[2],a="";if(this.options.pedantic){let c=this.rules.other.pedanticHrefTitle.exec(i);c&&(i=c[1],a=c[3])}else a=n[3]?n[3].slice(1,-1):"";return i=i.trim(),this.rules.other.startAngleBracket.test(i)&&(this.options.pedantic&&!this.rules.other.endAngleBracket.test(s)?i=i.slice(1):i=i.slice(1,-1)),He(n,{href:i&&i.replace(this.rules.inline.anyPunctuation,"$1"),title:a&&a.replace(this.rules.inline.anyPunctuation,"$1")},n[0],this.lexer,this.rules)}}reflink(e,t){let n=e.charCodeAt(0);if(n!==91&&n!==33)return;let r;if((r=this.rules.inline.reflink.exec(e))||(r=this.rules.inline.nolink.exec(e))){let s=r[0].charAt(0)==="!"?2:1;if(!this.options.pedantic&&Ze(e,r[1],s,this.rules))return;let o=t[W(r[2]||r[1])];if(!o){let i=r[0].charAt(0);return{type:"text",raw:i,text:i}}return He(r,o,r[0],this.lexer,this.rules)}}emStrong(e,t,n=""){let r=this.rules.inline.emStrongLDelim.exec(e);if(!r||!r[1]&&!r[2]&&!r[3]&&!r[4])return;let s=r[0][0],o=n===s,i=t.length-e.length,a=i;for(;!this.options.pedantic&&a>0&&t[a-1]===s;)a--;let c=[...t.slice(Math.max(0,a-2),a)].at(-1)??"",u=c==="*"||c==="_"||!!this.rules.inline.punctuation.exec(c);a<i&&(n=c);let d=a<i?u:n==="*"||n==="_"||!!this.rules.inline.punctuation.exec(n);if(r[4]&&n.match(this.rules.other.unicodeAlphaNumeric))return;let h=r[1]||r[3]||"";if(!h||!n||d){let p=[...r[0]].length-1,k,m,b=p,f=0,R=i-a+p,E=!this.options.pedantic&&!!c.trim()&&(!!h||s==="*"&&!u);if(s!=="*"&&s!=="_")return;let T=s==="*"?this.rules.inline.emStrongRDelimAst:this.rules.inline.emStrongRDelimUnd,U=oe(this,t,s),H=t.length-e.length+p;if(U<H)return;t=t.slice(-1*e.length+p);let K=U-H;for(T.lastIndex=0;(r=T.exec(t))!==null&&!(r.index>K);){if(k=r[1]||r[2]||r[3]||r[4]||r[5]||r[6],!k)continue;if(m=[...k].length,r[3]||r[4]){b+=m;continue}else if((r[5]||r[6]||E)&&R%3&&!((R+m)%3)){if(o&&(r[5]||r[6]))break;f+=m;continue}if(b-=m,b>0)continue;m=Math.min(m,m+b+f);let re=[...r[0]][0].length,B=e.slice(0,p+r.index+re+m);if(Math.min(p,m)%2){let se=B.slice(1,-1);return{type:"em",raw:B,text:se,tokens:this.lexer.inlineTokens(se)}}let X=B.slice(2,-2);return{type:"strong",raw:B,text:X,tokens:this.lexer.inlineTokens(X)}}}}codespan(e){if(e.charCodeAt(0)!==96)return;let t=this.rules.inline.code.exec(e);if(t){let n=t[2].replace(this.rules.other.newLineCharGlobal," "),r=this.rules.other.nonSpaceChar.test(n),s=this.rules.other.startingSpaceChar.test(n)&&this.rules.other.endingSpaceChar.test(n);return r&&s&&(n=n.substring(1,n.length-1)),{type:"codespan",raw:t[0],text:n}}}br(e){let t=e.charCodeAt(0);if(t!==32&&t!==92&&t!==10)return;let n=this.rules.inline.br.exec(e);if(n)return{type:"br",raw:n[0]}}del(e,t,n=""){if(e.charCodeAt(0)!==126)return;let r=this.rules.inline.delLDelim.exec(e);if(!r)return;if(!(r[1]||"")||!n||this.rules.inline.punctuation.exec(n)){let o=[...r[0]].length-1,i,a,c=o,u=this.rules.inline.delRDelim,d=ae(this,t),h=t.length-e.length+o;if(d<h)return;t=t.slice(-1*e.length+o);let p=d-h;for(u.lastIndex=0;(r=u.exec(t))!==null&&!(r.index>p);){if(i=r[1]||r[2]||r[3]||r[4]||r[5]||r[6],!i||(a=[...i].length,a!==o))continue;if(r[3]||r[4]){c+=a;continue}if(c-=a,c>0)continue;a=Math.min(a,a+c);let k=[...r[0]][0].length,m=e.slice(0,o+r.index+k+a),b=m.slice(o,-o);return{type:"del",raw:m,text:b,tokens:this.lexer.inlineTokens(b)}}}}autolink(e){if(e.charCodeAt(0)!==60)return;let t=this.rules.inline.autolink.exec(e);if(t){let n,r;return t[2]==="@"?(n=t[1],r="mailto:"+n):(n=t[1],r=n),{type:"link",raw:t[0],text:n,href:r,autolink:!0,tokens:[{type:"text",raw:n,text:n}]}}}url(e){let t;if(t=this.rules.inline.url.exec(e)){let n,r;if(t[2]==="@")n=t[0],r="mailto:"+n;else{let s;do s=t[0],t[0]=this.rules.inline._backpedal.exec(t[0])?.[0]??"";while(s!==t[0]);n=t[0],t[1]==="www."?r="http://"+t[0]:r=t[0]}return{type:"link",raw:t[0],text:n,href:r,autolink:!0,tokens:[{type:"text",raw:n,text:n}]}}}inlineText(e){let t=this.rules.inline.text.exec(e);if(t){let n=this.lexer.state.inRawBlock;return{type:"text",raw:t[0],text:n?t[0]:De(t[0]),escaped:n}}}};var w=class l{tokens;options;state;inlineQueue;tokenizer;constructor(e){this.tokens=[],this.tokens.links=Object.create(null),this.options=e||S,this.options.tokenizer=this.options.tokenizer||new _,this.tokenizer=this.options.tokenizer,this.tokenizer.options=this.options,this.tokenizer.lexer=this,this.inlineQueue=[],this.state={inLink:!1,inRawBlock:!1,linkEmitted:!1,linkParenPossible:!0,top:!0};let t={other:O,block:ee.normal,inline:F.normal};this.options.pedantic?(t.block=ee.pedantic,t.inline=F.pedantic):this.options.gfm&&(t.block=ee.gfm,this.options.breaks?t.inline=F.breaks:t.inline=F.gfm),this.tokenizer.rules=t}static get rules(){return{block:ee,inline:F}}static lex(e,t){return new l(t).lex(e)}static lexInline(e,t){return new l(t).inlineTokens(e)}lex(e){e=e.replace(O.carriageReturn,`
`),this.blockTokens(e,this.tokens);for(let t=0;t<this.inlineQueue.length;t++){let n=this.inlineQueue[t];this.state.inRawBlock=!1,this.inlineTokens(n.src,n.tokens)}return this.inlineQueue=[],this.tokens}blockTokens(e,t=[],n=!1){this.tokenizer.lexer=this;let r=this.state.lastToken;this.options.pedantic&&(e=e.replace(O.tabCharGlobal,"    ").replace(O.spaceLine,""));let s=1/0,o,i=this.options.gfm&&!this.options.pedantic&&this.tokenizer.paragraph===_.prototype.paragraph;for(;e;){if(e.length<s)s=e.length;else{this.infiniteLoopError(e.charCodeAt(0));break}this.state.lastToken=t.at(-1);let a;if(this.options.extensions?.block?.some(u=>(a=u.call({lexer:this},e,t))?(e=e.substring(a.raw.length),t.push(a),!0):!1))continue;if(a=this.tokenizer.space(e)){e=e.substring(a.raw.length);let u=t.at(-1);a.raw.length===1&&u!==void 0?u.raw+=`
`:t.push(a);continue}if(a=this.tokenizer.code(e)){e=e.substring(a.raw.length);let u=t.at(-1);u?.type==="paragraph"||u?.type==="text"?(u.raw+=(u.raw.endsWith(`
`)?"":`
`)+a.raw,u.text+=`
`+a.text,this.inlineQueue.at(-1).src=u.text):t.push(a);continue}if(a=this.tokenizer.fences(e)){e=e.substring(a.raw.length),t.push(a);continue}if(a=this.tokenizer.heading(e)){e=e.substring(a.raw.length),t.push(a);continue}if(a=this.tokenizer.hr(e)){e=e.substring(a.raw.length),t.push(a);continue}if(a=this.tokenizer.blockquote(e)){e=e.substring(a.raw.length),t.push(a);continue}if(a=this.tokenizer.list(e)){e=e.substring(a.raw.length),t.push(a);continue}if(a=this.tokenizer.html(e)){e=e.substring(a.raw.length),t.push(a);continue}if(a=this.tokenizer.def(e)){e=e.substring(a.raw.length);let u=t.at(-1);u?.type==="paragraph"||u?.type==="text"?(u.raw+=(u.raw.endsWith(`
`)?"":`
`)+a.raw,u.text+=`
`+a.raw,this.inlineQueue.at(-1).src=u.text):(this.tokens.links[a.tag]||(this.tokens.links[a.tag]={href:a.href,title:a.title}),t.push(a));continue}if(a=this.tokenizer.table(e)){e=e.substring(a.raw.length),t.push(a);continue}if(a=this.tokenizer.lheading(e)){e=e.substring(a.raw.length),t.push(a);continue}let c=e;if(this.options.extensions?.startBlock){let u=1/0,d=e.slice(1),h;this.options.extensions.startBlock.forEach(p=>{h=p.call({lexer:this},d),typeof h=="number"&&h>=0&&(u=Math.min(u,h))}),u<1/0&&u>=0&&(c=e.substring(0,u+1))}if(this.state.top&&(a=this.tokenizer.paragraph(c))){let u=t.at(-1);(n||u===o&&i)&&u?.type==="paragraph"?(u.raw+=(u.raw.endsWith(`
`)?"":`
`)+a.raw,u.text+=`
`+a.text,this.inlineQueue.pop(),this.inlineQueue.at(-1).src=u.text,o=u):(t.push(a),o=a),n=c.length!==e.length,e=e.substring(a.raw.length);continue}if(a=this.tokenizer.text(e)){e=e.substring(a.raw.length);let u=t.at(-1);u?.type==="text"?(u.raw+=(u.raw.endsWith(`
`)?"":`
`)+a.raw,u.text+=`
`+a.text,this.inlineQueue.pop(),this.inlineQueue.at(-1).src=u.text):t.push(a);continue}if(e){this.infiniteLoopError(e.charCodeAt(0));break}}return this.state.top=!0,this.state.lastToken=r,t}inline(e,t=[]){return this.inlineQueue.push({src:e,tokens:t}),t}linkInText(e){if(!e.includes("["))return!1;let t=this.tokenizer.rules.inline.link;for(let n of e.matchAll(this.tokenizer.rules.inline.blockSkip))if(t.test(n[0])&&e.charAt(n.index-1)!=="!")return!0;for(let n of e.matchAll(this.tokenizer.rules.inline.reflinkSearch)){let r=n[0],s=r.lastIndexOf("[");if(!(r.charAt(0)==="!"||!Object.hasOwn(this.tokens.links,W(r.slice(s+1,-1))))&&!(s>1&&this.linkInText(r.slice(1,s-1))))return!0}return!1}inlineTokens(e,t=[]){this.tokenizer.lexer=this;let n=this.state.linkParenPossible;this.state.linkParenPossible=e.includes(")");try{return this.#t(e,t)}finally{this.state.linkParenPossible=n}}#t(e,t){let n=e.includes("*")||e.includes("_")||e.includes("~"),r=n||this.options.hooks?.emStrongMask||this.tokenizer.emStrong!==_.prototype.emStrong||this.tokenizer.del!==_.prototype.del?this.#r(e):e;if(!n)return this.#e(e,r,t);qe(this.tokenizer,r);try{return this.#e(e,r,t)}finally{ve(this.tokenizer)}}#e(e,t,n){let r=!1,s="",o=1/0;for(;e;){if(e.length<o)o=e.length;else{this.infiniteLoopError(e.charCodeAt(0));break}r||(s=""),r=!1;let i;if(this.options.extensions?.inline?.some(u=>(i=u.call({lexer:this},e,n))?(e=e.substring(i.raw.length),n.push(i),!0):!1))continue;if(i=this.tokenizer.escape(e)){e=e.substring(i.raw.length),n.push(i);continue}if(i=this.tokenizer.tag(e)){e=e.substring(i.raw.length),n.push(i);continue}if(i=this.tokenizer.link(e)){e=e.substring(i.raw.length),n.push(i);continue}if(i=this.tokenizer.reflink(e,this.tokens.links)){e=e.substring(i.raw.length);let u=n.at(-1);i.type==="text"&&u?.type==="text"?(u.raw+=i.raw,u.text+=i.text):n.push(i);continue}let a=e[0];if(a==="*"||a==="_"){let u=t.length-e.length;if(oe(this.tokenizer,t,a)<=u){let h=1;for(;h<e.length&&e.charCodeAt(h)===a.charCodeAt(0);)h++;let p=e.substring(0,h),k=n.at(-1);k?.type==="text"&&!k.escaped?(k.raw+=p,k.text+=p):n.push({type:"text",raw:p,text:p,escaped:!1}),e=e.substring(h),s=a,r=!0;continue}}else if(a==="~"){let u=t.length-e.length;if(ae(this.tokenizer,t)<=u){let h=1;for(;h<e.length&&e.charCodeAt(h)===126;)h++;let p=e.substring(0,h),k=n.at(-1);k?.type==="text"&&!k.escaped?(k.raw+=p,k.text+=p):n.push({type:"text",raw:p,text:p,escaped:!1}),e=e.substring(h),s=a,r=!0;continue}}if(i=this.tokenizer.emStrong(e,t,s)){e=e.substring(i.raw.length),n.push(i);continue}if(i=this.tokenizer.codespan(e)){e=e.substring(i.raw.length),n.push(i);continue}if(i=this.tokenizer.br(e)){e=e.substring(i.raw.length),n.push(i);continue}if(i=this.tokenizer.del(e,t,s)){e=e.substring(i.raw.length),n.push(i);continue}if(i=this.tokenizer.autolink(e)){e=e.substring(i.raw.length),n.push(i);continue}if(!this.state.inLink&&(i=this.tokenizer.url(e))){e=e.substring(i.raw.length),n.push(i);continue}let c=e;if(this.options.extensions?.startInline){let u=1/0,d=e.slice(1),h;this.options.extensions.startInline.forEach(p=>{h=p.call({lexer:this},d),typeof h=="number"&&h>=0&&(u=Math.min(u,h))}),u<1/0&&u>=0&&(c=e.substring(0,u+1))}if(i=this.tokenizer.inlineText(c)){e=e.substring(i.raw.length),i.raw.slice(-1)!=="_"&&(s=i.raw.slice(-1)),r=!0;let u=n.at(-1);u?.type==="text"?(u.raw+=i.raw,u.text+=i.text):n.push(i);continue}if(e){this.infiniteLoopError(e.charCodeAt(0));break}}return n}#n(e){let{blockSkip:t,tag:n,autolink:r}=this.tokenizer.rules.inline,s="",o=0,i;for(t.lastIndex=0;i=t.exec(e);){let a=i.index+(i[2]?i[2].length:0),c=i.index+i[0].length;if(e.charAt(a)==="<"){let u=e.slice(a),d=n.exec(u)||r.exec(u);if(!d){t.lastIndex=a+1;continue}c=a+d[0].length,t.lastIndex=c}s+=e.slice(o,a)+"["+"a".repeat(c-a-2)+"]",o=c}return s+e.slice(o)}#r(e){let t=e;if(this.tokens.links&&e.includes("[")){let n=this.tokenizer.rules.inline.reflinkSearch,r=s=>{let o=s.lastIndexOf("[");if(!Object.hasOwn(this.tokens.links,W(s.slice(o+1,-1))))return s;if(o>1&&s.charAt(0)!=="!"){let i=s.slice(1,o-1);if(this.linkInText(i))return"["+i.replace(n,r)+"]["+"a".repeat(s.length-o-2)+"]"}return"["+"a".repeat(s.length-2)+"]"};t=t.replace(n,r)}return t=t.replace(this.tokenizer.rules.inline.anyPunctuationOutsideCode,(n,r,s)=>s?"+".repeat(n.length):r?r+n.slice(r.length,-r.length).replace(/`/g,"+")+r:n),t=this.#n(t),t=this.options.hooks?.emStrongMask?.call({lexer:this},t)??t,t}infiniteLoopError(e){let t="Infinite loop on byte: "+e;if(this.options.silent)console.error(t);else throw new Error(t)}};var I=class{options;parser;constructor(e){this.options=e||S}space(e){return""}code({text:e,lang:t,escaped:n}){let r=(t||"").match(O.notSpaceStart)?.[0],s=e?e.replace(O.endingNewline,"")+`
`:"";return r?'<pre><code class="language-'+y(r)+'">'+(n?s:y(s,!0))+`</code></pre>
`:"<pre><code>"+(n?s:y(s,!0))+`</code></pre>
`}blockquote({tokens:e}){return`<blockquote>
${this.parser.parse(e)}</blockquote>
`}html({text:e}){return e}def(e){return""}heading({tokens:e,depth:t}){return`<h${t}>${this.parser.parseInline(e)}</h${t}>
`}hr(e){return`<hr>
`}list(e){let t=e.ordered,n=e.start,r="";for(let i=0;i<e.items.length;i++){let a=e.items[i];r+=this.listitem(a)}let s=t?"ol":"ul",o=t&&n!==1?' start="'+n+'"':"";return"<"+s+o+`>
`+r+"</"+s+`>
`}listitem(e){return`<li>${this.parser.parse(e.tokens)}</li>
`}checkbox({checked:e}){return"<input "+(e?'checked="" ':"")+'disabled="" type="checkbox"> '}paragraph({tokens:e}){return`<p>${this.parser.parseInline(e)}</p>
`}table(e){let t="",n="";for(let s=0;s<e.header.length;s++)n+=this.tablecell(e.header[s]);t+=this.tablerow({text:n});let r="";for(let s=0;s<e.rows.length;s++){let o=e.rows[s];n="";for(let i=0;i<o.length;i++)n+=this.tablecell(o[i]);r+=this.tablerow({text:n})}return r&&(r=`<tbody>${r}</tbody>`),`<table>
<thead>
`+t+`</thead>
`+r+`</table>
`}tablerow({text:e}){return`<tr>
${e}</tr>
`}tablecell(e){let t=this.parser.parseInline(e.tokens),n=e.header?"th":"td";return(e.align?`<${n} align="${e.align}">`:`<${n}>`)+t+`</${n}>
`}strong({tokens:e}){return`<strong>${this.parser.parseInline(e)}</strong>`}em({tokens:e}){return`<em>${this.parser.parseInline(e)}</em>`}codespan({text:e}){return`<code>${y(e,!0)}</code>`}br(e){return"<br>"}del({tokens:e}){return`<del>${this.parser.parseInline(e)}</del>`}link({href:e,title:t,text:n,tokens:r,autolink:s}){let o=s?y(n,!0):this.parser.parseInline(r),i=xe(e);if(i===null)return o;e=y(i,s);let a='<a href="'+e+'"';return t&&(a+=' title="'+y(t)+'"'),a+=">"+o+"</a>",a}image({href:e,title:t,text:n,tokens:r}){r&&(n=this.parser.parseInline(r,this.parser.textRenderer));let s=xe(e);if(s===null)return y(n);e=s;let o=`<img src="${y(e)}" alt="${y(n)}"`;return t&&(o+=` title="${y(t)}"`),o+=">",o}text(e){return"tokens"in e&&e.tokens?this.parser.parseInline(e.tokens):"escaped"in e&&e.escaped?e.text:y(e.text)}};var z=class{parser;strong({text:e,tokens:t}){return t?this.parser.parseInline(t,this):e}em({text:e,tokens:t}){return t?this.parser.parseInline(t,this):e}codespan({text:e}){return e}del({text:e,tokens:t}){return t?this.parser.parseInline(t,this):e}html({text:e}){return e}text({text:e}){return e}link({text:e,tokens:t}){return t?this.parser.parseInline(t,this):e}image({text:e,tokens:t}){return t?this.parser.parseInline(t,this):e}br(){return`
`}checkbox({raw:e}){return e}};var P=class l{options;renderer;textRenderer;constructor(e){this.options=e||S,this.options.renderer=this.options.renderer||new I,this.renderer=this.options.renderer,this.renderer.options=this.options,this.renderer.parser=this,this.textRenderer=new z,this.textRenderer.parser=this}static parse(e,t){return new l(t).parse(e)}static parseInline(e,t){return new l(t).parseInline(e)}parse(e){this.renderer.parser=this;let t="";for(let n=0;n<e.length;n++){let r=e[n];if(this.options.extensions?.renderers?.[r.type]){let o=r,i=this.options.extensions.renderers[o.type].call({parser:this},o);if(i!==!1||!["space","hr","heading","code","table","blockquote","list","checkbox","html","def","paragraph","text"].includes(o.type)){t+=i===!1?"":i??"";continue}}let s=r;switch(s.type){case"space":{t+=this.renderer.space(s);break}case"hr":{t+=this.renderer.hr(s);break}case"heading":{t+=this.renderer.heading(s);break}case"code":{t+=this.renderer.code(s);break}case"table":{t+=this.renderer.table(s);break}case"blockquote":{t+=this.renderer.blockquote(s);break}case"list":{t+=this.renderer.list(s);break}case"checkbox":{t+=this.renderer.checkbox(s);break}case"html":{t+=this.renderer.html(s);break}case"def":{t+=this.renderer.def(s);break}case"paragraph":{t+=this.renderer.paragraph(s);break}case"text":{t+=this.renderer.text(s);break}default:{let o='Token with "'+s.type+'" type was not found.';if(this.options.silent)return console.error(o),"";throw new Error(o)}}}return t}parseInline(e,t=this.renderer){this.renderer.parser=this;let n="";for(let r=0;r<e.length;r++){let s=e[r];if(this.options.extensions?.renderers?.[s.type]){let i=this.options.extensions.renderers[s.type].call({parser:this},s);if(i!==!1||!["escape","html","link","image","checkbox","strong","em","codespan","br","del","text"].includes(s.type)){n+=i===!1?"":i??"";continue}}let o=s;switch(o.type){case"escape":{n+=t.text(o);break}case"html":{n+=t.html(o);break}case"link":{n+=t.link(o);break}case"image":{n+=t.image(o);break}case"checkbox":{n+=t.checkbox(o);break}case"strong":{n+=t.strong(o);break}case"em":{n+=t.em(o);break}case"codespan":{n+=t.codespan(o);break}case"br":{n+=t.br(o);break}case"del":{n+=t.del(o);break}case"text":{n+=t.text(o);break}default:{let i='Token with "'+o.type+'" type was not found.';if(this.options.silent)return console.error(i),"";throw new Error(i)}}}return n}};var A=class{options;block;constructor(e){this.options=e||S}static passThroughHooks=new Set(["preprocess","postprocess","processAllTokens","emStrongMask"]);static passThroughHooksRespectAsync=new Set(["preprocess","postprocess","processAllTokens"]);preprocess(e){return e}postprocess(e){return e}processAllTokens(e){return e}emStrongMask(e){return e}provideLexer(e=this.block){return e?w.lex:w.lexInline}provideParser(e=this.block){return e?P.parse:P.parseInline}};function M(l,e){if(Array.isArray(e))for(let t=0;t<e.length;t++)l.push(e[t]);else l.push(e)}var ne=class{defaults=G();options=this.setOptions;parse=this.parseMarkdown(!0);parseInline=this.parseMarkdown(!1);Parser=P;Renderer=I;TextRenderer=z;Lexer=w;Tokenizer=_;Hooks=A;constructor(...e){this.use(...e)}walkTokens(e,t){let n=[];for(let r of e)switch(M(n,t.call(this,r)),r.type){case"table":{let s=r;for(let o of s.header)M(n,this.walkTokens(o.tokens,t));for(let o of s.rows)for(let i of o)M(n,this.walkTokens(i.tokens,t));break}case"list":{let s=r;M(n,this.walkTokens(s.items,t));break}default:{let s=r;this.defaults.extensions?.childTokens?.[s.type]?this.defaults.extensions.childTokens[s.type].forEach(o=>{let i=s[o].flat(1/0);M(n,this.walkTokens(i,t))}):s.tokens&&M(n,this.walkTokens(s.tokens,t))}}return n}use(...e){let t=this.defaults.extensions||{renderers:Object.create(null),childTokens:Object.create(null)};return e.forEach(n=>{let r={...n};if(r.async=this.defaults.async||r.async||!1,n.extensions&&(n.extensions.forEach(s=>{if(!s.name)throw new Error("extension name required");if("renderer"in s){let o=t.renderers[s.name];o?t.renderers[s.name]=function(...i){let a=s.renderer.apply(this,i);return a===!1&&(a=o.apply(this,i)),a}:t.renderers[s.name]=s.renderer}if("tokenizer"in s){if(!s.level||s.level!=="block"&&s.level!=="inline")throw new Error("extension level must be 'block' or 'inline'");let o=t[s.level];o?o.unshift(s.tokenizer):t[s.level]=[s.tokenizer],s.start&&(s.level==="block"?t.startBlock?t.startBlock.push(s.start):t.startBlock=[s.start]:s.level==="inline"&&(t.startInline?t.startInline.push(s.start):t.startInline=[s.start]))}"childTokens"in s&&s.childTokens&&(t.childTokens[s.name]=s.childTokens)}),r.extensions=t),n.renderer){let s=this.defaults.renderer||new I(this.defaults);for(let o in n.renderer){if(!(o in s))throw new Error(`renderer '${o}' does not exist`);if(["options","parser"].includes(o))continue;let i=o,a=n.renderer[i],c=s[i];s[i]=(...u)=>{let d=a.apply(s,u);return d===!1&&(d=c.apply(s,u)),d===!1?"":d??""}}r.renderer=s}if(n.tokenizer){let s=this.defaults.tokenizer||new _(this.defaults);for(let o in n.tokenizer){if(!(o in s))throw new Error(`tokenizer '${o}' does not exist`);if(["options","rules","lexer"].includes(o))continue;let i=o,a=n.tokenizer[i],c=s[i];s[i]=(...u)=>{let d=a.apply(s,u);return d===!1&&(d=c.apply(s,u)),d}}r.tokenizer=s}if(n.hooks){let s=this.defaults.hooks||new A;for(let o in n.hooks){if(!(o in s))throw new Error(`hook '${o}' does not exist`);if(["options","block"].includes(o))continue;let i=o,a=n.hooks[i],c=s[i];A.passThroughHooks.has(o)?s[i]=u=>{if(s.options.async&&A.passThroughHooksRespectAsync.has(o))return(async()=>{let h=await a.call(s,u);return c.call(s,h)})();let d=a.call(s,u);return c.call(s,d)}:s[i]=(...u)=>{if(s.options.async)return(async()=>{let h=await a.apply(s,u);return h===!1&&(h=await c.apply(s,u)),h})();let d=a.apply(s,u);return d===!1&&(d=c.apply(s,u)),d}}r.hooks=s}if(n.walkTokens){let s=this.defaults.walkTokens,o=n.walkTokens;r.walkTokens=function(i){let a=[];return M(a,o.call(this,i)),s&&M(a,s.call(this,i)),a}}this.defaults={...this.defaults,...r}}),this}setOptions(e){return this.defaults={...this.defaults,...e},this}lexer(e,t){return w.lex(e,t??this.defaults)}parser(e,t){return P.parse(e,t??this.defaults)}parseMarkdown(e){return(n,r)=>{let s={...r},o={...this.defaults,...s},i=this.onError(!!o.silent,!!o.async);if(this.defaults.async===!0&&s.async===!1)return i(new Error("marked(): The async option was set to true by an extension. Remove async: false from the parse options object to return a Promise."));if(typeof n>"u"||n===null)return i(new Error("marked(): input parameter is undefined or null"));if(typeof n!="string")return i(new Error("marked(): input parameter is of type "+Object.prototype.toString.call(n)+", string expected"));if(o.hooks&&(o.hooks.options=o,o.hooks.block=e),o.async)return(async()=>{let a=o.hooks?await o.hooks.preprocess(n):n,u=await(o.hooks?await o.hooks.provideLexer(e):e?w.lex:w.lexInline)(a,o),d=o.hooks?await o.hooks.processAllTokens(u):u;o.walkTokens&&await Promise.all(this.walkTokens(d,o.walkTokens));let p=await(o.hooks?await o.hooks.provideParser(e):e?P.parse:P.parseInline)(d,o);return o.hooks?await o.hooks.postprocess(p):p})().catch(i);try{o.hooks&&(n=o.hooks.preprocess(n));let c=(o.hooks?o.hooks.provideLexer(e):e?w.lex:w.lexInline)(n,o);o.hooks&&(c=o.hooks.processAllTokens(c)),o.walkTokens&&this.walkTokens(c,o.walkTokens);let d=(o.hooks?o.hooks.provideParser(e):e?P.parse:P.parseInline)(c,o);return o.hooks&&(d=o.hooks.postprocess(d)),d}catch(a){return i(a)}}}onError(e,t){return n=>{if(n.message+=`
Please report this to https://github.com/markedjs/marked.`,e){let r="<p>An error occurred:</p><pre>"+y(n.message+"",!0)+"</pre>";return t?Promise.resolve(r):r}if(t)return Promise.reject(n);throw n}}};var v=new ne;function x(l,e){return v.parse(l,e)}x.options=x.setOptions=function(l){return v.setOptions(l),x.defaults=v.defaults,ue(x.defaults),x};x.getDefaults=G;x.defaults=S;function jt(...l){return v.use(...l),x.defaults=v.defaults,ue(x.defaults),x}x.use=jt;x.walkTokens=function(l,e){return v.walkTokens(l,e)};x.parseInline=v.parseInline;x.Parser=P;x.parser=P.parse;x.Renderer=I;x.TextRenderer=z;x.Lexer=w;x.lexer=w.lex;x.Tokenizer=_;x.Hooks=A;x.parse=x;var En=x.options,zn=x.setOptions,Mn=x.walkTokens,Bn=x.parseInline,Dn=x,qn=P.parse,vn=w.lex;
return { Hooks: A, Lexer: w, Marked: ne, Parser: P, Renderer: I, TextRenderer: z, Tokenizer: _, defaults: S, getDefaults: G, lexer: vn, marked: x, options: En, parse: Dn, parseInline: Bn, parser: qn, setOptions: zn, use: jt, walkTokens: Mn };
})();
const $js_ui_markdown = (() => { // js/ui/markdown.js
// Markdown as a tree of components. No HTML is ever made from a message: what looks like HTML is shown as text, images
// become links, and a link that is not http, https or mailto becomes text.
const { html: html } = $js_lib;
const { lexer: lexer } = $vendor_marked;

const MAX_CHARS = 20_000;
const SAFE = /^(https?:|mailto:)/i;

function Markdown({ text }) {
  if (text.length > MAX_CHARS) return html`<div class="text">${text}</div>`;
  return html`<div class="markdown break">${lexer(text, { gfm: true, breaks: true }).map(block)}</div>`;
}

function block(token) {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      return html`<p><strong>${inline(token.tokens)}</strong></p>`;
    case "paragraph":
      return html`<p>${inline(token.tokens)}</p>`;
    case "text":
      return token.tokens ? inline(token.tokens) : token.text;
    case "code":
      return html`<pre tabindex="0"><code>${token.text}</code></pre>`;
    case "blockquote":
      return html`<blockquote>${token.tokens.map(block)}</blockquote>`;
    case "list":
      return token.ordered
        ? html`<ol start=${token.start || 1}>${token.items.map(item)}</ol>`
        : html`<ul>${token.items.map(item)}</ul>`;
    case "table":
      return table(token);
    case "hr":
      return html`<hr />`;
    default:
      return html`<p class="text">${token.raw}</p>`;
  }
}

function item(token) {
  const box = token.task ? (token.checked ? "☑ " : "☐ ") : "";
  return html`<li>${box}${token.tokens.map(block)}</li>`;
}

function table(token) {
  return html`<div class="scroll-x" tabindex="0"><table>
    <thead><tr>${token.header.map((cell) => html`<th>${inline(cell.tokens)}</th>`)}</tr></thead>
    <tbody>${token.rows.map((row) => html`<tr>${row.map((cell) => html`<td>${inline(cell.tokens)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

function inline(tokens = []) {
  return tokens.map((token) => {
    switch (token.type) {
      case "strong":
        return html`<strong>${inline(token.tokens)}</strong>`;
      case "em":
        return html`<em>${inline(token.tokens)}</em>`;
      case "del":
        return html`<del>${inline(token.tokens)}</del>`;
      case "codespan":
        return html`<code>${token.text}</code>`;
      case "br":
        return html`<br />`;
      case "link":
        return link(token.href, inline(token.tokens), token.raw);
      case "image":
        return link(token.href, `🖼 ${token.text || token.href}`, token.raw);
      case "escape":
        return token.text;
      case "text":
        return token.tokens ? inline(token.tokens) : token.raw;
      default:
        return token.raw;
    }
  });
}

function link(href, children, raw) {
  if (!SAFE.test(href.trim())) return raw;
  return html`<a href=${href} target="_blank" rel="noopener noreferrer nofollow">${children}</a>`;
}
return { Markdown: Markdown };
})();
const $js_pages_chat_words = (() => { // js/pages/chat/words.js
// Messages of a chat, and what happened to the context while one was written.
const { html: html, memo: memo } = $js_lib;
const { count: count, duration: duration } = $js_format;
const { to: to } = $js_router;
const { Elapsed: Elapsed } = $js_ui_elapsed;
const { Markdown: Markdown } = $js_ui_markdown;
const { Badge: Badge, Button: Button, Copy: Copy, Failure: Failure, Status: Status } = $js_ui_parts;

const WHO = { user: "You", assistant: "Model", system: "Instructions", developer: "Instructions", tool: "Tool result" };

/** @param {{said: object, conversation: string, isLast: boolean, onAgain: () => void}} props */
const Said = memo(function Said({ said, conversation, isLast, isBusy, onAgain }) {
  const { role, text, row, answer, state } = said;
  const isAnswer = role === "assistant";
  const calls = (row?.tool_calls ?? answer?.calls ?? []).filter(Boolean);
  const reasoning = row?.reasoning ?? answer?.reasoning;
  const refusal = row?.refusal ?? answer?.refusal;
  const compaction = answer?.compaction;
  const isEmpty = state === "coming" && !text && !calls.length && !reasoning;
  const isCompacting = isEmpty && compaction?.type === "running";
  return html`<li class="said ${role}">
    ${compaction && html`<${Compaction} compaction=${compaction} context=${answer.context} />`}
    ${!isCompacting && html`<article class="bubble" aria-label=${isAnswer ? "Answer" : role === "user" ? "Question" : (WHO[role] ?? role)} aria-busy=${state === "coming"}>
      <header class="row small soft">
        <strong>${WHO[role] ?? role}</strong>${isAnswer && html`<span class="break">${row?.model ?? said.model}</span>`}
        ${(state === "stopped" || row?.incomplete) && html`<${Badge} kind="warn">stopped<//>`}
        ${row?.finish_reason === "length" && html`<${Badge} kind="warn">cut off by its length<//>`}
      </header>
      ${reasoning && html`<details class="small"><summary>Reasoning</summary><div class="text soft">${reasoning}</div></details>`}
      ${isEmpty && html`<p class="soft"><span class="loading">Waiting for the model…</span></p>`}
      ${text && (role === "tool" ? html`<details class="small"><summary>${count(text.length)} characters</summary><pre class="plain text" tabindex="0">${text}</pre></details>`
        : isAnswer ? html`<${Markdown} text=${text} />` : html`<div class="text">${text}</div>`)}
      ${refusal && html`<div class="notice warn">${refusal}</div>`}
      ${calls.map((call) => html`<p class="small break">calls <code>${call.name}(${call.arguments})</code></p>`)}
      ${row?.attachments?.map((one) => html`<p class="small"><${Badge}>${one.type}<//> ${one.detail}</p>`)}
      ${state === "failed" && html`<${Failure} error=${said.error} retry=${isLast && !isBusy ? onAgain : null} />`}
      ${isAnswer && state !== "coming" && html`<footer class="row small">
        ${answer?.status && html`<${Status} of=${answer.status} />`}
        ${answer?.context && html`<span class="soft number">${count(answer.context.prompt_tokens)} / ${count(answer.context.window)} tokens</span>`}
        ${row && html`<a aria-label=${`What the model saw for message ${row.seq}`}
          href=${to(["conversations", conversation, "context"], { item: row.id })}>What the model saw</a>`}
        ${text && html`<${Copy} text=${text} name=${row ? `Copy answer ${row.seq}` : "Copy this answer"} />`}
        ${isLast && !isBusy && state !== "failed" && html`<${Button} small kind="plain" title="As a branch: this answer stays" onClick=${onAgain}>Ask again<//>`}
      </footer>`}
      ${[answer?.context?.warnings ?? []].flat().map((warning) => html`<div class="notice warn small">${warning}</div>`)}
    </article>`}
  </li>`;
});

/** That older turns are being summarized, and how that ended. */
function Compaction({ compaction, context }) {
  if (compaction.type === "running") {
    return html`<div class="compacting" role="group" aria-label="Compaction">
      <span class="loading"><strong>Compacting…</strong></span>
      <span class="small">Older turns are being summarized: ${count(compaction.inputTokens)} tokens in a window of ${count(compaction.window)}.</span>
      <${Elapsed} since=${compaction.since} />
    </div>`;
  }
  const failed = compaction.type === "failed";
  const summaries = context?.summaries ?? [];
  return html`<div class="compacting ${failed ? "failed" : "done"}" role="group" aria-label="Compaction">
    <strong>${failed ? "Compaction failed" : "Compacted"}</strong>
    <span class="small">${failed ? "The model that summarizes failed, so older turns were shortened by rule." : "Older turns are told by summaries now; the log is untouched."}
      ${context && ` ${count(compaction.inputTokens)} → ${count(context.prompt_tokens)} tokens`}${summaries.length > 0 && `, ${count(summaries.length)} ${summaries.length === 1 ? "summary" : "summaries"}`}</span>
    <span class="number soft">${duration(compaction.durationMs / 1000)}</span>
  </div>`;
}
return { Said: Said };
})();
const $js_pages_chat = (() => { // js/pages/chat.js
// Talk to a model through the gateway and watch the context while it happens.
const { html: html, useCallback: useCallback, useEffect: useEffect, useLayoutEffect: useLayoutEffect, useRef: useRef, useState: useState } = $js_lib;
const { get: get } = $js_api;
const { useCommands: useCommands } = $js_commands;
const { useLoaded: useLoaded } = $js_load;
const { go: go, here: here, to: to } = $js_router;
const { count: count } = $js_format;
const { Button: Button, ContextBar: ContextBar, Empty: Empty, Failure: Failure, Field: Field, Loading: Loading, Status: Status } = $js_ui_parts;
const { useAction: useAction } = $js_ui_confirm;
const { useTalk: useTalk } = $js_pages_chat_talk;
const { copyConversation: copyConversation, isOwn: isOwn, placeOf: placeOf } = $js_pages_conversation_place;
const { Said: Said } = $js_pages_chat_words;

const MODEL = "concertina.model";
/** Its window can be filled in a minute. */
const SIMULATED_MODEL = "sim-8k";
const OTHER = "\u0000other";
const NEAR_END_PX = 60;
const SUGGESTIONS = [
  "The gate at Kestrel Yard opens at 06:40. When does it open?",
  "Write a short table of three ways to shorten a long text.",
];

/** The address follows the conversation without a new page; going elsewhere makes one. */
function Chat({ route, session }) {
  const [round, setRound] = useState(0);
  const shown = useRef(route.parts[1] ?? "");
  useEffect(() => {
    const follow = () => {
      const { parts, query } = here();
      if (parts[0] !== "chat" || ((parts[1] ?? "") === shown.current && !query.has("model"))) return;
      shown.current = parts[1] ?? "";
      setRound((before) => before + 1);
    };
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  const onMoved = useCallback((id) => { shown.current = id; }, []);
  return html`<${Pane} key=${round} asked=${shown.current} model=${here().query.get("model")} session=${session} onMoved=${onMoved} />`;
}

function Pane({ asked, model, session, onMoved }) {
  const [wish, setWish] = useState(() => ({ model: model ?? sessionStorage.getItem(MODEL) ?? "", policy: "", system: "", temperature: "", maxTokens: "", summarize: "" }));
  const mayChat = session.scopes.includes("chat");
  const record = useLoaded(async (signal) => (asked && session.operator ? get(placeOf(asked), {}, { signal }) : null), []);
  const mayWrite = !asked || !session.operator || (record.data && isOwn(session, record.data));
  const models = useLoaded(async (signal) => (mayChat ? (await get("v1/models", {}, { signal })).data.map((one) => one.id) : []), []);
  const newestWish = useRef(wish);
  newestWish.current = wish;
  const options = useCallback(() => requestOptions(newestWish.current), []);
  const talk = useTalk(asked, options);
  const change = (part) => setWish((before) => ({ ...before, ...part }));
  useEffect(() => onMoved(talk.id), [talk.id]);
  useEffect(() => {
    const known = talk.said.findLast((one) => one.row?.model)?.row.model;
    const last = talk.context?.model ?? known;
    if (!wish.model && (last || (!asked && models.data?.length))) change({ model: last ?? firstModel(models.data, session) });
  }, [talk.context, talk.said.length > 0, models.data]);
  useEffect(() => { if (asked && talk.context?.model) change({ model: talk.context.model }); }, [talk.isLoading]);
  useEffect(() => { if (wish.model) sessionStorage.setItem(MODEL, wish.model); }, [wish.model]);
  useCommands([Boolean(talk.id) && { text: "Open the log of this chat", run: () => go(["conversations", talk.id]) }]);
  return html`<div class="chat">
    <div class="page-head chat-head">
      <h1 tabindex="-1">Chat</h1>
      ${talk.id && html`<a class="button small" href=${to(["conversations", talk.id])}>Open the conversation</a>`}
      <${Button} small onClick=${() => go(["chat"])} disabled=${!talk.id && !talk.said.length}>New chat<//>
    </div>
    ${mayChat && html`<${Options} wish=${wish} onChange=${change} models=${models} session=${session} />`}
    <${Context} context=${talk.context} said=${talk.said} />
    ${talk.error && html`<${Failure} error=${talk.error} retry=${talk.said.length ? null : talk.reopen} />`}
    <${Messages} talk=${talk} onSuggest=${mayChat && mayWrite && wish.model ? talk.send : null} />
    <p class="visually-hidden" role="status">${talk.announced}</p>
    ${record.data && !mayWrite ? html`<${Others} id=${asked} />` : mayChat
      ? html`<${Composer} isBusy=${talk.isBusy} isReady=${Boolean(wish.model) && Boolean(mayWrite) && !talk.isLoading} onSend=${talk.send} onStop=${talk.stop} />`
      : html`<div class="notice warn">This key may look but not chat: it lacks the scope <code>chat</code>.</div>`}
  </div>`;
}

/** In the place of the composer, where an operator looks at somebody's conversation. */
function Others({ id }) {
  const copying = useAction(() => copyConversation(id), (copy) => go(["chat", copy]));
  return html`<div class="notice warn row">
    <span class="grow">This conversation belongs to another tenant. What you try in a copy is stored in yours.</span>
    <${Button} kind="primary" onClick=${copying.run} disabled=${copying.busy}>Try in a copy<//>
    <${Failure} error=${copying.error} />
  </div>`;
}

const firstModel = (names, session) => (session.simulated && names.includes(SIMULATED_MODEL) ? SIMULATED_MODEL : names[0]);

/** What a request is made with, beside its messages. */
function requestOptions({ model, policy, system, temperature, maxTokens, summarize }) {
  const fields = {};
  if (temperature !== "" && !Number.isNaN(Number(temperature))) fields.temperature = Number(temperature);
  if (Number(maxTokens) > 0) fields.max_tokens = Number(maxTokens);
  if (summarize) fields.context = { summarize };
  return { model, policy, system, fields };
}

function Options({ wish, onChange, models, session }) {
  const names = models.data ?? [];
  const isOther = wish.model !== "" && !names.includes(wish.model);
  const [isTyping, setTyping] = useState(false);
  const pick = (value) => {
    setTyping(value === OTHER);
    onChange({ model: value === OTHER ? "" : value });
  };
  return html`<div class="panel chat-options">
    <div class="row">
      <label class="check">Model <select class="input small" aria-label="Model" value=${isTyping ? OTHER : wish.model} onChange=${(event) => pick(event.target.value)}>
        ${!wish.model && !isTyping && html`<option value="">choose…</option>`}
        ${isOther && !isTyping && html`<option value=${wish.model}>${wish.model}</option>`}
        ${names.map((name) => html`<option value=${name}>${name}</option>`)}
        <option value=${OTHER}>another…</option>
      </select></label>
      ${isTyping && html`<input class="input small" aria-label="Name of the model" spellcheck="false" autocomplete="off" value=${wish.model} onInput=${(event) => onChange({ model: event.target.value.trim() })} />`}
      <label class="check">Policy <select class="input small" aria-label="Policy" value=${wish.policy} onChange=${(event) => onChange({ policy: event.target.value })}>
        <option value="">default</option>
        ${(session.policies ?? []).map((name) => html`<option value=${name}>${name}</option>`)}
      </select></label>
    </div>
    ${models.error && html`<p class="small soft">The models cannot be listed: ${models.error.message}</p>`}
    <details class="small"><summary>Options</summary>
      <div class="chat-fields">
        <${Field} label="Instructions" hint="Sent as a system message with each request. Empty: those of before.">
          ${(id, hint) => html`<textarea id=${id} aria-describedby=${hint} class="input" rows="3" value=${wish.system} onInput=${(event) => onChange({ system: event.target.value })}></textarea>`}
        <//>
        <div class="row">
          <${Field} label="Temperature">${(id) => html`<input id=${id} class="input small" type="number" min="0" max="2" step="0.1" value=${wish.temperature} onInput=${(event) => onChange({ temperature: event.target.value })} />`}<//>
          <${Field} label="Most tokens of an answer">${(id) => html`<input id=${id} class="input small" type="number" min="1" step="1" value=${wish.maxTokens} onInput=${(event) => onChange({ maxTokens: event.target.value })} />`}<//>
          <${Field} label="Summarize">${(id) => html`<select id=${id} class="input small" value=${wish.summarize} onChange=${(event) => onChange({ summarize: event.target.value })}>
            <option value="">when it is needed</option><option value="now">before the next answer</option><option value="never">never, shorten instead</option>
          </select>`}<//>
        </div>
      </div>
    </details>
  </div>`;
}

/** How full the window is, by the newest answer. */
function Context({ context, said }) {
  if (!context) return null;
  const status = said.findLast((one) => one.answer?.status && one.state !== "coming")?.answer.status ?? context.status;
  return html`<div class="chat-context">
    <${ContextBar} tokens=${context.prompt_tokens} window=${context.window} threshold=${context.compacts_above ?? context.limit} />
    ${status && html`<${Status} of=${status} />`}
    <span class="small soft">${context.summaries?.length > 0 && `${count(context.summaries.length)} ${context.summaries.length === 1 ? "summary" : "summaries"}`}</span>
  </div>`;
}

/** What was said. It follows the newest words until somebody scrolls up. */
function Messages({ talk, onSuggest }) {
  const scroller = useRef(null);
  const follows = useRef(true);
  const followedTo = useRef(0);
  const [isAway, setAway] = useState(false);
  const toEnd = () => {
    const element = scroller.current;
    element.scrollTop = element.scrollHeight;
    followedTo.current = element.scrollTop;
  };
  // A busy browser tells of scrolling later than it scrolls: whoever has just scrolled up is left alone, too.
  const isFollowing = () => follows.current && scroller.current?.scrollTop >= followedTo.current;
  useLayoutEffect(() => { if (isFollowing()) toEnd(); }, [talk.said]);
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = scroller.current;
    follows.current = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
    if (follows.current) followedTo.current = scrollTop;
    setAway(!follows.current);
  };
  const older = async () => {
    const element = scroller.current;
    const fromEnd = element.scrollHeight - element.scrollTop;
    follows.current = false;
    await talk.older();
    requestAnimationFrame(() => { element.scrollTop = element.scrollHeight - fromEnd; });
  };
  const first = talk.said.find((one) => one.row)?.row.seq ?? 0;
  return html`<div class="chat-scroll" ref=${scroller} onScroll=${onScroll} tabindex="0" role="region" aria-label="Messages" aria-busy=${talk.isBusy}>
    ${talk.isLoading && html`<${Loading}>Loading what was said…<//>`}
    ${!talk.isLoading && !talk.said.length && !talk.error && html`<${Welcome} onSuggest=${onSuggest} />`}
    ${first > 0 && html`<p class="row chat-older"><${Button} small onClick=${older}>Earlier messages<//><span class="small soft">${count(first)} before these</span></p>`}
    <ol class="chat-messages">
      ${talk.said.map((said, index) => html`<${Said} key=${said.key} said=${said} conversation=${talk.id} isBusy=${talk.isBusy && index === talk.said.length - 1}
        isLast=${index === talk.said.length - 1} onAgain=${talk.again} />`)}
    </ol>
    ${isAway && html`<p class="chat-newest"><${Button} small onClick=${toEnd}>↓ Newest<//></p>`}
  </div>`;
}

function Welcome({ onSuggest }) {
  return html`<${Empty}>
    <p>Say something. As the conversation grows, older turns are summarized; you see when, and what the model saw.</p>
    ${onSuggest && html`<p class="row chat-suggestions">${SUGGESTIONS.map((words) => html`<${Button} small onClick=${() => onSuggest(words)}>${words}<//>`)}</p>`}
  <//>`;
}

function Composer({ isBusy, isReady, onSend, onStop }) {
  const [text, setText] = useState("");
  const field = useRef(null);
  useEffect(() => field.current?.focus({ preventScroll: true }), []);
  useEffect(() => {
    if (!isBusy && document.activeElement === document.body) field.current?.focus({ preventScroll: true });
  }, [isBusy]);
  const canSend = isReady && !isBusy && text.trim() !== "";
  const submit = (event) => {
    event?.preventDefault();
    if (!canSend) return;
    onSend(text);
    setText("");
    field.current.focus();
  };
  const onKey = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
    else if (event.key === "Escape" && isBusy) onStop();
  };
  return html`<form class="chat-composer" onSubmit=${submit}>
    <textarea ref=${field} class="input grow" rows=${Math.min(8, Math.max(2, text.split("\n").length))} aria-label="Message" placeholder="Enter sends, Shift + Enter begins a new line"
      value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${onKey}></textarea>
    ${isBusy
      ? html`<${Button} kind="danger" onClick=${onStop}>Stop<//>`
      : html`<${Button} kind="primary" type="submit" disabled=${!canSend}>Send<//>`}
  </form>`;
}
return { Chat: Chat };
})();
const $js_pages_conversation_branches = (() => { // js/pages/conversation/branches.js
// The family of a conversation: what it branched from, and what branched from it.
const { html: html } = $js_lib;
const { get: get } = $js_api;
const { useLoaded: useLoaded } = $js_load;
const { to: to } = $js_router;
const { count: count } = $js_format;
const { Badge: Badge, Loaded: Loaded, When: When } = $js_ui_parts;
const { placeOf: placeOf } = $js_pages_conversation_place;

function Branches({ id, record, round }) {
  const family = useLoaded((signal) => get(placeOf(id, "branches"), {}, { signal }), [id, record.updated_at, round]);
  return html`<${Loaded} from=${family} waiting="Looking for branches…">${(told) => html`
    ${told.data.length < 2 &&
    html`<p class="notice">This conversation has no branches. One begins when a client sends a history that ends inside the log: an edited
      or regenerated message.</p>`}
    <nav class="panel" aria-label="Branches">
      <${Tree} members=${rootsOf(told.data)} all=${told.data} />
    </nav>
    ${told.has_more && html`<p class="small soft">There are more; these are the oldest ${count(told.data.length)}.</p>`}
  `}<//>`;
}

/** Those whose parent is not here: the oldest, and what branched from something deleted. */
function rootsOf(all) {
  const ids = new Set(all.map((one) => one.id));
  return all.filter((one) => one.parent_id === null || !ids.has(one.parent_id));
}

function Tree({ members, all }) {
  return html`<ul class="tree">${members.map((one) => {
    const children = all.filter((other) => other.parent_id === one.id).sort((a, b) => a.fork_seq - b.fork_seq);
    return html`<li key=${one.id}>
      <${Member} member=${one} />
      ${children.length > 0 && html`<${Tree} members=${children} all=${all} />`}
    </li>`;
  })}</ul>`;
}

function Member({ member }) {
  const fork = member.fork_seq;
  return html`<div class="branch ${member.current ? "current" : ""}">
    <p class="row">
      <a class="break" aria-current=${member.current ? "true" : undefined} href=${to(["conversations", member.id, "log"])}>${member.title ?? member.id}</a>
      ${member.current && html`<${Badge} kind="good">this one<//>`}
    </p>
    <p class="facts small soft">
      ${member.parent_id &&
      html`<span>leaves <a href=${to(["conversations", member.parent_id, "log"], { seq: Math.max(0, fork - 1) })}>after message ${fork - 1}</a>,
        goes on <a aria-label=${`here, at message ${fork} of ${member.title ?? member.id}`} href=${to(["conversations", member.id, "log"], { seq: fork })}>here</a></span>`}
      <span class="number">${count(member.messages)} messages</span>
      <span class="number">${count(member.tokens)} tokens</span>
      <span>updated <${When} at=${member.updated_at} /></span>
      <code class="break">${member.id}</code>
    </p>
  </div>`;
}
return { Branches: Branches };
})();
const $js_pages_conversation_compact = (() => { // js/pages/conversation/compact.js
// Summarize now: first what it would do, then its progress, then what came of it.
const { html: html, useEffect: useEffect, useRef: useRef, useState: useState } = $js_lib;
const { ApiError: ApiError, events: events, send: send } = $js_api;
const { count: count, duration: duration, percent: percent } = $js_format;
const { useLoaded: useLoaded, useSettled: useSettled } = $js_load;
const { to: to } = $js_router;
const { Button: Button, ContextBar: ContextBar, Dialog: Dialog, Failure: Failure, Field: Field, Loading: Loading } = $js_ui_parts;
const { Elapsed: Elapsed } = $js_ui_elapsed;

/**
 * @param {object} props
 * @param {string} props.id  of the conversation
 * @param {string} [props.throughItem]  the last item that is to be summarized
 * @param {() => void} props.onClose
 * @param {() => void} [props.onDone]  called when summaries were written
 */
function Compact({ id, throughItem = "", onClose, onDone }) {
  const [wish, setWish] = useState({ instructions: "", through: throughItem });
  const [running, setRunning] = useState(null);
  const place = `v1/conversations/${encodeURIComponent(id)}/compact`;
  const through = useSettled(wish.through.trim(), 400);
  const trial = useLoaded(async (signal) => ({ through, ...(await send("POST", place, bodyOf({ through, instructions: "" }, { dry_run: true }), { signal })) }), [id, through]);
  // What was worked out for another message is not shown: the button would be enabled, and disabled in the middle of a click.
  const estimate = trial.data?.through === wish.through.trim() ? trial.data : null;
  const leaving = useRef(null);
  useEffect(() => () => leaving.current?.abort(), []);

  const begin = async () => {
    leaving.current = new AbortController();
    const { signal } = leaving.current;
    setRunning({ state: "waiting", since: Date.now(), done: 0, ranges: estimate?.to_summarize?.length ?? 1, made: [] });
    try {
      let result = null;
      for await (const { data } of events(place, bodyOf(wish, { stream: true }), { signal })) {
        if (data.error) throw new ApiError(200, data);
        if (data.type === "compaction_completed" || data.object === "conversation.compaction") result = data;
        else setRunning((before) => advanced(before, data));
      }
      if (result === null) throw new ApiError(0, { error: { message: "The connection broke off. The compaction goes on in the gateway; look at the summaries in a moment." } });
      setRunning((before) => ({ ...before, state: "done", result }));
      if (result.summaries.length) onDone?.();
    } catch (error) {
      if (error.name !== "AbortError") setRunning((before) => ({ ...before, state: "failed", error }));
    }
  };

  if (running) return html`<${Dialog} title="Compact" onClose=${onClose} footer=${html`<${Button} kind=${running.state === "done" ? "primary" : ""} onClick=${onClose}>${running.state === "done" ? "Done" : "Close"}<//>`}>
    <${Running} id=${id} running=${running} retry=${begin} onLeave=${onClose} />
  <//>`;
  const nothing = estimate && !estimate.to_summarize?.length;
  return html`<${Dialog} title="Compact" onClose=${onClose} footer=${html`
    <${Button} onClick=${onClose}>Cancel<//>
    <${Button} kind="primary" disabled=${!estimate || nothing || Boolean(trial.error)} onClick=${begin}>Summarize now<//>`}>
    <p class="soft">A model writes a summary of the older turns. Nothing is deleted: the whole log stays readable, and summaries can be edited and rolled back.</p>
    <${Field} label="What the summary should focus on" hint="Optional, such as: keep every error message and its fix.">
      ${(field, hint) => html`<textarea id=${field} aria-describedby=${hint} class="input" rows="2" maxlength="4000" value=${wish.instructions}
        onInput=${(event) => setWish({ ...wish, instructions: event.target.value })}></textarea>`}
    <//>
    <${Field} label="Up to message" hint="The last message to be summarized, as the log shows it: #12, or its id. Left empty: all but the newest turns.">
      ${(field, hint) => html`<input id=${field} aria-describedby=${hint} class="input" spellcheck="false" autocomplete="off" value=${wish.through}
        onInput=${(event) => setWish({ ...wish, through: event.target.value })} />`}
    <//>
    <section class="stack" aria-label="What it would do" aria-live="polite">
      ${trial.error ? html`<${Refusal} error=${trial.error} retry=${trial.reload} />`
        : !estimate ? html`<${Loading}>Working out what would be summarized…<//>`
        : nothing ? html`<div class="notice"><strong>There is nothing to summarize.</strong> ${estimate.reason}</div>`
        : html`<${Estimate} id=${id} trial=${estimate} onLeave=${onClose} />`}
    </section>
  <//>`;
}

function bodyOf({ instructions, through }, rest) {
  return { ...rest, ...(instructions.trim() && { instructions: instructions.trim() }), ...(through.trim() && { through_item: through.trim() }) };
}

function advanced(before, event) {
  if (event.type === "compaction_started") return { ...before, state: "running", ranges: event.ranges, inputTokens: event.input_tokens };
  const made = event.type === "summary_completed" ? [...before.made, event] : before.made;
  return { ...before, state: "running", done: event.done ?? before.done, ranges: event.ranges ?? before.ranges, made };
}

function Estimate({ id, trial, onLeave }) {
  return html`<div class="panel stack">
    <p>Would summarize ${trial.to_summarize.map((range, at) => html`${at > 0 && ", "}<a
      onClick=${onLeave} href=${to(["conversations", id, "log"], { seq: range.from_seq })}>messages
      #${range.from_seq} to #${range.to_seq - 1}</a>${range.folds.length > 0 && ` (${range.folds.length} summaries become one)`}`)} with ${trial.model}.</p>
    <${Change} before=${trial.tokens_before} after=${trial.tokens_after} window=${trial.window} isEstimate />
  </div>`;
}

function Change({ before, after, window: size, isEstimate = false }) {
  return html`<dl class="change">
    <dt>${isEstimate ? "Now" : "Before"}</dt><dd><${ContextBar} tokens=${before} window=${size} label="Tokens before" /></dd>
    <dt>After</dt><dd><${ContextBar} tokens=${after} window=${size} label="Tokens after" /></dd>
  </dl>
  <p class="small soft">${before > after ? `${isEstimate ? "About " : ""}${count(before - after)} tokens less per turn, ${percent(before - after, before)} of what ${isEstimate ? "is sent now" : "was sent"}.` : isEstimate ? "It would not send less." : "No less is sent than before."}</p>`;
}

function Running({ id, running, retry, onLeave }) {
  if (running.state === "failed") return html`<${Refusal} error=${running.error} retry=${retry} />`;
  if (running.state === "done") return html`<${Result} id=${id} result=${running.result} onLeave=${onLeave} />`;
  return html`<div class="stack">
    <p class="row" role="status"><span class="loading">${running.state === "waiting" ? "Waiting for the conversation to be free…" : "Summarizing…"}</span>
      <${Elapsed} since=${running.since} /></p>
    <progress class="wide" aria-label="Summaries written" max=${running.ranges} value=${running.done || undefined}></progress>
    <p class="small soft">${count(running.done)} of ${count(running.ranges)} ${running.ranges === 1 ? "summary" : "summaries"} written${running.inputTokens ? `, from ${count(running.inputTokens)} tokens` : ""}. It goes on when this is closed.</p>
    <${Made} made=${running.made} />
  </div>`;
}

function Made({ made }) {
  return made.length > 0 && html`<ul class="small">${made.map((one) => html`<li key=${one.id}>#${one.from_seq} to #${one.to_seq - 1}: ${count(one.tokens)} tokens${one.kind === "mechanical" && ", written without a model"}</li>`)}</ul>`;
}

function Result({ id, result, onLeave }) {
  const failed = result.outcome === "failed" || result.summaries.some((one) => one.kind === "mechanical");
  const heading = !result.summaries.length ? "Nothing was summarized." : failed ? "Shortened without a model." : "Done.";
  return html`<div class="stack" role="status">
    <p><strong>${heading}</strong> ${result.summaries.length > 0 && html`${count(result.summaries.length)} ${result.summaries.length === 1 ? "summary" : "summaries"} by ${result.model} in ${duration(result.duration_ms / 1000)}.`} ${result.reason}</p>
    ${failed && result.summaries.length > 0 && html`<div class="notice warn">The summarizing model failed, so the summary was made from the messages by rule. It can be written anew under <a
      onClick=${onLeave} href=${to(["conversations", id, "summaries"])}>Summaries</a>.</div>`}
    ${result.warnings.filter((warning) => warning !== result.reason).map((warning) => html`<div class="notice warn">${warning}</div>`)}
    ${result.summaries.length > 0 && html`<${Change} before=${result.tokens_before} after=${result.tokens_after} window=${result.window} />
      <p><a onClick=${onLeave} href=${to(["conversations", id, "summaries"])}>Read ${result.summaries.length === 1 ? "the summary" : "the summaries"}</a>${result.usage?.total_tokens && html`
        <span class="soft small"> · took ${count(result.usage.prompt_tokens)} + ${count(result.usage.completion_tokens)} tokens</span>`}</p>`}
  </div>`;
}

const REMEDIES = {
  conversation_busy: "Another request or compaction of this conversation is under way. Wait until it is done, then try again.",
  model_required: "No answer of this conversation came through the gateway yet, so no model is known that could summarize it.",
  insufficient_permissions: "Look with a key that has the scope “manage”.",
};

function Refusal({ error, retry }) {
  const remedy = REMEDIES[error.code] ?? (error.status >= 502 ? "The summarizing model could not be reached. Nothing was changed." : error.hint);
  return html`<${Failure} error=${Object.assign(Object.create(error), { message: error.message, code: error.code, hint: remedy })} retry=${retry} />`;
}
return { Compact: Compact };
})();
const $js_pages_conversation_head = (() => { // js/pages/conversation/head.js
// The head of a conversation: what it is called, how full it is, and what can be done with it.
const { html: html, useEffect: useEffect, useRef: useRef, useState: useState } = $js_lib;
const { download: download, get: get, send: send } = $js_api;
const { useCommands: useCommands } = $js_commands;
const { useLoaded: useLoaded } = $js_load;
const { go: go, to: to } = $js_router;
const { count: count } = $js_format;
const { Confirm: Confirm, useAction: useAction } = $js_ui_confirm;
const { Menu: Menu } = $js_ui_menu;
const { Badge: Badge, Button: Button, ContextBar: ContextBar, Copy: Copy, Failure: Failure, MODES: MODES, Status: Status, When: When } = $js_ui_parts;
const { Compact: Compact } = $js_pages_conversation_compact;
const { copyConversation: copyConversation, isOwn: isOwn, mayManage: mayManage, placeOf: placeOf, useTitle: useTitle } = $js_pages_conversation_place;

const MAX_TITLE_CHARS = 512;
const UNANSWERED = {};

function Head({ record, session, round, onChange }) {
  const title = useTitle(record);
  const [open, setOpen] = useState(null);
  const close = () => setOpen(null);
  const copying = useAction(() => copyConversation(record.id), (id) => go(["chat", id]));
  const exporting = useAction(() => download(placeOf(record.id, "export"), {}, `${record.id}.jsonl`));
  const manages = mayManage(session);
  const deleted = () => go(["conversations"]);
  const chats = session.scopes.includes("chat");
  useCommands([
    manages && { text: "Compact this conversation…", run: () => setOpen("compact") },
    chats && isOwn(session, record) && { text: "Continue this conversation in a chat", run: () => go(["chat", record.id]) },
    chats && !isOwn(session, record) && { text: "Try in a copy of this conversation", run: copying.run },
    { text: "Export this conversation", run: exporting.run },
    manages && { text: "Rename this conversation", run: () => setOpen("rename") },
    manages && { text: "Delete this conversation…", run: () => setOpen("delete") },
  ]);
  return html`
    <header class="conversation-head">
      <div class="conversation-name">
        ${open === "rename" ? html`<${Rename} title=${title} record=${record} onChange=${onChange} onClose=${close} />`
          : html`<h1 tabindex="-1" class="break" title=${title}>${title ?? "…"}</h1>`}
        <p class="facts small soft number">
          <span class="wide"><code class="break">${record.id}</code><${Copy} text=${record.id} label="Copy id" /></span>
          ${record.external_id && html`<span title="What the client calls it"><span class="wide">client’s id </span><code class="break">${record.external_id}</code></span>`}
          <span>updated <${When} at=${record.updated_at} /></span>
          <span class="wide">created <${When} at=${record.created_at} /></span>
          <span>${count(record.messages)} messages</span>
          <span class="wide">${count(record.tokens)} tokens</span>
          ${MODES[record.mode] && html`<span class="wide">client ${MODES[record.mode]}</span>`}
          ${record.parent && html`<a href=${to(["conversations", record.id, "branches"])}>a branch</a>`}
        </p>
      </div>
      <div class="conversation-side">
        <div class="row actions">
          ${chats && isOwn(session, record) && html`<a class="button primary wide" href=${to(["chat", record.id])}>Continue in chat</a>`}
          ${chats && !isOwn(session, record) && html`<${Button} kind="primary wide" onClick=${copying.run} disabled=${copying.busy}>Try in a copy<//>`}
          ${manages && html`<${Button} kind="wide" onClick=${() => setOpen("compact")}>Compact…<//>`}
          <${Menu} label="More" kind="menu-more" face="More">${(shut) => {
            const leading = (act) => () => { shut(); act(); };
            return html`
              ${chats && isOwn(session, record) && html`<a class="menu-item narrow" href=${to(["chat", record.id])}>Continue in chat</a>`}
              ${chats && !isOwn(session, record) && html`<button type="button" class="menu-item narrow" onClick=${leading(copying.run)}>Try in a copy</button>`}
              ${manages && html`<button type="button" class="menu-item narrow" onClick=${leading(() => setOpen("compact"))}>Compact…</button>`}
              ${manages && html`<button type="button" class="menu-item" onClick=${leading(() => setOpen("rename"))}>Rename</button>`}
              <button type="button" class="menu-item" onClick=${leading(exporting.run)}>Export</button>
              ${manages && html`<button type="button" class="menu-item danger" onClick=${leading(() => setOpen("delete"))}>Delete…</button>`}
              <p class="menu-facts small soft"><code class="break">${record.id}</code></p>`;
          }}<//>
        </div>
        <${Fullness} record=${record} round=${round} />
      </div>
    </header>
    ${exporting.busy && html`<p class="small soft" role="status">Exporting…</p>`}
    ${copying.busy && html`<p class="small soft" role="status">Copying…</p>`}
    <${Failure} error=${exporting.error ?? copying.error} />
    <${OtherMetadata} metadata=${record.metadata} />
    ${open === "compact" && html`<${Compact} id=${record.id} onClose=${close} onDone=${onChange} />`}
    ${open === "delete" && html`<${DeleteConversation} record=${record} onClose=${close} onDeleted=${deleted} />`}
  `;
}

/** A field in the place of the title. */
function Rename({ title, record, onChange, onClose }) {
  const { title: before, ...others } = record.metadata;
  const [draft, setDraft] = useState(before ?? "");
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);
  const saving = useAction(
    (words) => send("POST", placeOf(record.id), { metadata: words ? { ...others, title: words } : others }),
    () => {
      onClose();
      onChange();
    },
  );
  const submit = (event) => {
    event.preventDefault();
    saving.run(draft.trim());
  };
  return html`<form class="row" onSubmit=${submit} onKeyDown=${(event) => event.key === "Escape" && onClose()}>
    <h1 class="visually-hidden" tabindex="-1">${title}</h1>
    <input class="input grow" aria-label="Title" maxlength=${MAX_TITLE_CHARS} value=${draft} placeholder="As it begins" ref=${field}
      onInput=${(event) => setDraft(event.target.value)} />
    <${Button} type="submit" kind="primary" disabled=${saving.busy}>Save<//>
    <${Button} onClick=${onClose}>Cancel<//>
    <${Failure} error=${saving.error} />
  </form>`;
}

/** What the next request would be sent with. */
function Fullness({ record, round }) {
  const context = useLoaded(
    (signal) => nextPrompt(record.id, signal),
    [record.id, record.messages, record.summaries, round],
  );
  const view = context.data;
  if (view === UNANSWERED) {
    return html`<p class="small soft">No model answered here yet, so it is not known whose window counts.</p>`;
  }
  if (context.error) return html`<p class="small soft">The context cannot be shown: ${context.error.message}</p>`;
  if (view === null) return html`<p class="small soft" role="status">Planning the next request…</p>`;
  return html`
    <${ContextBar} tokens=${view.prompt_tokens} window=${view.window} threshold=${view.compacts_above}
      label="What the next prompt takes of the window" />
    <p class="facts small soft">
      <${Status} of=${view.status} />
      <span class="wide">policy <strong>${view.policy}</strong></span>
      <span class="wide break">model <strong>${view.model}</strong></span>
      ${view.summaries.length > 0 && html`<a class="wide number" href=${to(["conversations", record.id, "summaries"])}>${count(view.summaries.length)} ${view.summaries.length === 1 ? "summary" : "summaries"} shown</a>`}
      ${!view.fits && html`<${Badge} kind="bad">does not fit<//>`}
    </p>
  `;
}

async function nextPrompt(id, signal) {
  const { data } = await get(placeOf(id, "turns"), { limit: 1, order: "desc" }, { signal });
  return data[0]?.model ? get(placeOf(id, "context"), { limit: 1 }, { signal }) : UNANSWERED;
}

function OtherMetadata({ metadata }) {
  const pairs = Object.entries(metadata).filter(([name]) => name !== "title");
  if (pairs.length === 0) return null;
  return html`<dl class="pairs small">${pairs.map(
    ([name, value]) => html`<div><dt>${name}</dt><dd class="break">${value}</dd></div>`,
  )}</dl>`;
}

/** Also in the list of conversations. */
function DeleteConversation({ record, title, onClose, onDeleted }) {
  const [branches, setBranches] = useState(false);
  const remove = () => send("DELETE", placeOf(record.id), undefined, { query: { branches: branches || null } });
  return html`<${Confirm} title="Delete this conversation?" action="Delete for good" onClose=${onClose}
    onConfirm=${async () => onDeleted(await remove())}>
    <p class="break"><strong>${title ?? record.metadata.title ?? record.external_id ?? record.id}</strong></p>
    <p>Its ${count(record.messages)} messages, its summaries and its stored completions are destroyed. This cannot be
      taken back.</p>
    <label class="row"><input type="checkbox" checked=${branches} onChange=${(event) => setBranches(event.target.checked)} />
      Delete what branched from it, too</label>
  <//>`;
}
return { Head: Head, DeleteConversation: DeleteConversation };
})();
const $js_ui_marks = (() => { // js/ui/marks.js
// Words that were looked for, marked where they stand: the text itself is left alone.
const NAME = "found";
const MOST = 2_000;

/** Mark the words of `asked` in the texts below `element`; no words take all marks away. */
function marked(element, asked) {
  if (!globalThis.CSS?.highlights) return;
  const words = asked.match(/[\p{L}\p{N}_]{2,}/gu) ?? [];
  if (element === null || words.length === 0) {
    CSS.highlights.delete(NAME);
    return;
  }
  const pattern = new RegExp(words.sort((a, b) => b.length - a.length).join("|"), "giu");
  const ranges = [];
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node && ranges.length < MOST; node = texts.nextNode()) {
    for (const match of node.data.matchAll(pattern)) {
      const range = new Range();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      ranges.push(range);
    }
  }
  CSS.highlights.set(NAME, new Highlight(...ranges));
}
return { marked: marked };
})();
const $vendor_virtual_core_lazy_measurements = (() => { // vendor/virtual-core/lazy-measurements.js
function getMeasurementKey(item) {
  return typeof item === "object" ? item.key : item;
}
function createLazyMeasurementsView(cache, flat) {
  const count = cache.length;
  return new Proxy(cache, {
    get(target, prop, receiver) {
      if (typeof prop === "string") {
        const c = prop.charCodeAt(0);
        if (c >= 48 && c <= 57) {
          const i = +prop;
          if (Number.isInteger(i) && i >= 0 && i < count) {
            let v = target[i];
            if (typeof v !== "object") {
              const s = flat[i * 2];
              v = target[i] = {
                index: i,
                key: v,
                start: s,
                size: flat[i * 2 + 1],
                end: s + flat[i * 2 + 1],
                lane: 0
              };
            }
            return v;
          }
        }
        if (prop === "length") return count;
      }
      return Reflect.get(target, prop, receiver);
    }
  });
}
return { createLazyMeasurementsView: createLazyMeasurementsView, getMeasurementKey: getMeasurementKey };
})();
const $vendor_virtual_core_utils = (() => { // vendor/virtual-core/utils.js
function memo(getDeps, fn, opts) {
  let deps = opts.initialDeps ?? [];
  let result;
  let isInitial = true;
  function memoizedFunction() {
    var _a;
    const debugEnabled = "production" !== "production" && !!opts.key && !!((_a = opts.debug) == null ? void 0 : _a.call(opts));
    let depTime = 0;
    if (debugEnabled) depTime = Date.now();
    const newDeps = getDeps();
    const depsChanged = newDeps.length !== deps.length || newDeps.some((dep, index) => deps[index] !== dep);
    if (!depsChanged) {
      return result;
    }
    deps = newDeps;
    let resultTime = 0;
    if (debugEnabled) resultTime = Date.now();
    result = fn(...newDeps);
    if (debugEnabled) {
      const depEndTime = Math.round((Date.now() - depTime) * 100) / 100;
      const resultEndTime = Math.round((Date.now() - resultTime) * 100) / 100;
      const resultFpsPercentage = resultEndTime / 16;
      const pad = (str, num) => {
        str = String(str);
        while (str.length < num) {
          str = " " + str;
        }
        return str;
      };
      console.info(
        `%c⏱ ${pad(resultEndTime, 5)} /${pad(depEndTime, 5)} ms`,
        `
            font-size: .6rem;
            font-weight: bold;
            color: hsl(${Math.max(
          0,
          Math.min(120 - 120 * resultFpsPercentage, 120)
        )}deg 100% 31%);`,
        opts == null ? void 0 : opts.key
      );
    }
    if ((opts == null ? void 0 : opts.onChange) && !(isInitial && opts.skipInitialOnChange)) {
      opts.onChange(result);
    }
    isInitial = false;
    return result;
  }
  memoizedFunction.updateDeps = (newDeps) => {
    deps = newDeps;
  };
  return memoizedFunction;
}
function notUndefined(value, msg) {
  if (value === void 0) {
    throw new Error(`Unexpected undefined${msg ? `: ${msg}` : ""}`);
  } else {
    return value;
  }
}
const approxEqual = (a, b) => Math.abs(a - b) < 1.01;
const debounce = (targetWindow, fn, ms) => {
  let timeoutId;
  return Object.assign(
    function(...args) {
      targetWindow.clearTimeout(timeoutId);
      timeoutId = targetWindow.setTimeout(() => fn.apply(this, args), ms);
    },
    {
      // The handle is closure-local, so a caller that has already
      // unsubscribed has no way to stop a queued call. Teardown paths use
      // this to drop the pending invocation instead of letting it land.
      cancel: () => {
        targetWindow.clearTimeout(timeoutId);
      }
    }
  );
};
return { approxEqual: approxEqual, debounce: debounce, memo: memo, notUndefined: notUndefined };
})();
const $vendor_virtual_core_scroll_classifier = (() => { // vendor/virtual-core/scroll-classifier.js
const { approxEqual: approxEqual } = $vendor_virtual_core_utils;
function classifyScrollEvent({
  offset,
  isScrolling,
  elementMax,
  holdOffset,
  scrollOffset,
  pendingWrite,
  clampedMaxAtWrite
}) {
  var _a;
  if (isScrolling && pendingWrite === null && offset === scrollOffset) {
    return "spurious";
  }
  if (pendingWrite !== null && Math.abs(offset - pendingWrite.target) < 1.5) {
    return "readBack";
  }
  if (pendingWrite !== null && !pendingWrite.smooth && elementMax !== null && pendingWrite.target > elementMax + holdOffset + 0.5 && Math.abs(offset - (elementMax + holdOffset)) < 1.5) {
    return "clampedReadBack";
  }
  if (pendingWrite !== null && !pendingWrite.smooth && ((_a = pendingWrite.lowMaxes) == null ? void 0 : _a.some((max) => Math.abs(offset - max) < 1.5))) {
    return "clampedReadBack";
  }
  if (clampedMaxAtWrite !== null && Math.abs(offset - clampedMaxAtWrite) < 1.5) {
    return "clampedEcho";
  }
  return "external";
}
const isAnimating = (phase) => phase === "smooth" || phase === "smoothFinishing";
function externalRetiresCommand({
  kind,
  offset,
  command,
  target
}) {
  return kind !== "spurious" && kind !== "readBack" && // Our own write, clamped (`clampedReadBack`, #1310): the command is not
  // retired by it, and reconcile retargets below the new max.
  kind !== "clampedReadBack" && (command == null ? void 0 : command.index) != null && // Nothing has been written for a command waiting for the tail; these
  // are the fling's events.
  command.phase !== "queued" && // A non-smooth write lands at once, so any other scroll event is the
  // user's, even before reconcile saw the target reached (the target may
  // keep moving, or iOS ignored the write under a finger). A write the
  // browser clamped because the sizer hasn't grown yet reads back at the
  // max, which is also where the fresh target clamps, so the check below
  // keeps it reconciling (#1294). While a smooth scroll's animation may
  // still report, its events look like a user's, so it yields only once it
  // has landed.
  !isAnimating(command.phase) && !approxEqual(offset, command.lastTargetOffset) && !approxEqual(offset, target()) && // A compensation write's clamped echo (#1258) keeps the command. The
  // order is deliberate, not tidiness: this clause stays after `target()`
  // (and `clampedReadBack` before it) because `target()` can rebuild the
  // measurements, so it must run for exactly the events it always did.
  kind !== "clampedEcho";
}
const FLING_WINDOW_MS = 40;
function flingSpedUp(samples) {
  const last = samples[samples.length - 1];
  if (last === void 0) return false;
  let j = samples.length - 2;
  while (j >= 0 && last.t - samples[j].t < FLING_WINDOW_MS) j--;
  if (j < 0) return false;
  const mid = samples[j];
  let k = j - 1;
  while (k >= 0 && mid.t - samples[k].t < FLING_WINDOW_MS) k--;
  if (k < 0) return false;
  const first = samples[k];
  const recent = (last.offset - mid.offset) / (last.t - mid.t);
  const before = (mid.offset - first.offset) / (mid.t - first.t);
  return recent * before >= 0 && Math.abs(recent) >= 2 * Math.abs(before) && Math.abs(recent) - Math.abs(before) >= 0.8;
}
function flingCaught(samples) {
  const last = samples[samples.length - 1];
  if (last === void 0) return false;
  let j = samples.length - 2;
  while (j >= 0 && last.t - samples[j].t < FLING_WINDOW_MS) j--;
  if (j < 0) return false;
  const from = samples[j];
  return Math.abs(last.offset - from.offset) / (last.t - from.t) >= 0.05;
}
return { classifyScrollEvent: classifyScrollEvent, externalRetiresCommand: externalRetiresCommand, flingCaught: flingCaught, flingSpedUp: flingSpedUp };
})();
const $vendor_virtual_core_ios_gesture = (() => { // vendor/virtual-core/ios-gesture.js
let _isIOSResult;
const isIOSWebKit = () => {
  if (_isIOSResult !== void 0) return _isIOSResult;
  if (typeof navigator === "undefined") return _isIOSResult = false;
  if (/iP(hone|od|ad)/.test(navigator.userAgent)) return _isIOSResult = true;
  const mtp = navigator.maxTouchPoints;
  return _isIOSResult = navigator.platform === "MacIntel" && mtp !== void 0 && mtp > 0;
};
let _iosMomentumOverridesWritesResult;
const iosMomentumOverridesWrites = () => {
  if (_iosMomentumOverridesWritesResult !== void 0) {
    return _iosMomentumOverridesWritesResult;
  }
  return _iosMomentumOverridesWritesResult = isIOSWebKit() && typeof CSS !== "undefined" && typeof CSS.supports === "function" && CSS.supports("overflow-anchor: auto");
};
const momentumOverridesWrites = () => !isIOSWebKit() || iosMomentumOverridesWrites();
const _resetIOSDetectionForTests = () => {
  _isIOSResult = void 0;
  _iosMomentumOverridesWritesResult = void 0;
};
const touchListenerOptions = {
  capture: true,
  passive: true
};
class IosGesture {
  constructor(host) {
    this.host = host;
    this._touch = null;
    this.inMotion = () => this._touch !== null && this._touch.phase !== "lateFling";
    this.dragging = () => {
      var _a;
      return ((_a = this._touch) == null ? void 0 : _a.phase) === "down" && this._touch.moved;
    };
    this.tail = () => {
      var _a;
      return ((_a = this._touch) == null ? void 0 : _a.phase) === "tail" ? this._touch.moved ? "fling" : "tap" : null;
    };
    this.onScroll = ({
      isScrolling,
      ownReadBack,
      moved,
      external
    }) => {
      var _a, _b, _c;
      if (isScrolling && ((_a = this._touch) == null ? void 0 : _a.phase) === "tail") {
        this._openTail(this._touch.moved || !ownReadBack, false);
      } else if (((_b = this._touch) == null ? void 0 : _b.phase) === "lateFling") {
        if (this.host.now() > this._touch.until) {
          this._touch = null;
        } else if (external && isScrolling && moved) {
          this._openTail(true, false);
        }
      }
      if (!ownReadBack && isScrolling && moved && ((_c = this._touch) == null ? void 0 : _c.phase) === "down") {
        this._touch.moved = true;
        return true;
      }
      return false;
    };
    this.touchStart = () => {
      this.end();
      this._touch = { phase: "down", moved: false };
    };
    this.touchEnd = () => {
      var _a;
      const moved = ((_a = this._touch) == null ? void 0 : _a.phase) === "down" && this._touch.moved;
      this.end();
      this._openTail(moved, moved);
    };
    this.end = () => {
      var _a;
      const win = this.host.getWindow();
      if (((_a = this._touch) == null ? void 0 : _a.phase) === "tail" && win != null) {
        win.clearTimeout(this._touch.timerId);
      }
      this._touch = null;
    };
    this.listen = (target) => {
      const onTouchStart = () => this.touchStart();
      const onTouchEnd = () => this.touchEnd();
      target.addEventListener("touchstart", onTouchStart, touchListenerOptions);
      target.addEventListener("touchend", onTouchEnd, touchListenerOptions);
      target.addEventListener("touchcancel", onTouchEnd, touchListenerOptions);
      return () => {
        target.removeEventListener(
          "touchstart",
          onTouchStart,
          touchListenerOptions
        );
        target.removeEventListener("touchend", onTouchEnd, touchListenerOptions);
        target.removeEventListener(
          "touchcancel",
          onTouchEnd,
          touchListenerOptions
        );
        this.end();
      };
    };
    this._openTail = (moved, awaitingFling) => {
      const win = this.host.getWindow();
      if (win == null) return;
      this.end();
      const tail = {
        phase: "tail",
        moved,
        awaitingFling,
        // Only fires while this tail is current: `end` clears it otherwise.
        timerId: win.setTimeout(() => {
          if (this.host.tailStillMoving()) {
            this._openTail(tail.moved, tail.awaitingFling);
            return;
          }
          this._touch = tail.awaitingFling ? { phase: "lateFling", until: this.host.now() + 1e3 } : null;
          this.host.onTailClosed();
        }, 150)
      };
      this._touch = tail;
    };
  }
  get touch() {
    return this._touch;
  }
}
return { IosGesture: IosGesture, _resetIOSDetectionForTests: _resetIOSDetectionForTests, iosMomentumOverridesWrites: iosMomentumOverridesWrites, isIOSWebKit: isIOSWebKit, momentumOverridesWrites: momentumOverridesWrites };
})();
const $vendor_virtual_core_index = (() => { // vendor/virtual-core/index.js
const { createLazyMeasurementsView: createLazyMeasurementsView, getMeasurementKey: getMeasurementKey } = $vendor_virtual_core_lazy_measurements;
const { memo: memo, approxEqual: approxEqual, notUndefined: notUndefined, debounce: debounce } = $vendor_virtual_core_utils;
const { flingCaught: flingCaught, externalRetiresCommand: externalRetiresCommand, flingSpedUp: flingSpedUp, classifyScrollEvent: classifyScrollEvent } = $vendor_virtual_core_scroll_classifier;
const { IosGesture: IosGesture, isIOSWebKit: isIOSWebKit, momentumOverridesWrites: momentumOverridesWrites } = $vendor_virtual_core_ios_gesture;
const { _resetIOSDetectionForTests: _resetIOSDetectionForTests } = $vendor_virtual_core_ios_gesture;
const getRect = (element) => {
  const { clientWidth, clientHeight } = element;
  return { width: clientWidth, height: clientHeight };
};
const createFrameQueue = (targetWindow) => {
  const ids = /* @__PURE__ */ new Set();
  return {
    schedule: (fn) => {
      const id = targetWindow.requestAnimationFrame(() => {
        ids.delete(id);
        fn();
      });
      ids.add(id);
    },
    cancel: () => {
      ids.forEach((id) => targetWindow.cancelAnimationFrame(id));
      ids.clear();
    }
  };
};
const defaultKeyExtractor = (index) => index;
const defaultRangeExtractor = (range) => {
  const overscan = range.overscan * Math.max(range.lanes ?? 1, 1);
  const start = Math.max(range.startIndex - overscan, 0);
  const end = Math.min(range.endIndex + overscan, range.count - 1);
  const len = end - start + 1;
  const arr = new Array(len);
  for (let i = 0; i < len; i++) {
    arr[i] = start + i;
  }
  return arr;
};
const observeElementRect = (instance, cb) => {
  const element = instance.scrollElement;
  if (!element) {
    return;
  }
  const targetWindow = instance.targetWindow;
  if (!targetWindow) {
    return;
  }
  const handler = (rect) => {
    const { width, height } = rect;
    cb({ width: Math.round(width), height: Math.round(height) });
  };
  handler(getRect(element));
  if (!targetWindow.ResizeObserver) {
    return () => {
    };
  }
  const frames = createFrameQueue(targetWindow);
  const observer = new targetWindow.ResizeObserver(() => {
    const run = () => {
      handler(getRect(element));
    };
    instance.options.useAnimationFrameWithResizeObserver ? frames.schedule(run) : run();
  });
  observer.observe(element, { box: "content-box" });
  return () => {
    observer.unobserve(element);
    frames.cancel();
  };
};
const addEventListenerOptions = {
  passive: true
};
const observeWindowRect = (instance, cb) => {
  const element = instance.scrollElement;
  if (!element) {
    return;
  }
  const handler = () => {
    cb({ width: element.innerWidth, height: element.innerHeight });
  };
  handler();
  element.addEventListener("resize", handler, addEventListenerOptions);
  return () => {
    element.removeEventListener("resize", handler);
  };
};
const supportsScrollend = typeof window == "undefined" ? true : "onscrollend" in window;
const observeOffset = (instance, cb, readOffset) => {
  const element = instance.scrollElement;
  if (!element) {
    return;
  }
  const targetWindow = instance.targetWindow;
  if (!targetWindow) {
    return;
  }
  const registerScrollendEvent = instance.options.useScrollendEvent && supportsScrollend;
  let offset = 0;
  const fallback = registerScrollendEvent ? null : debounce(
    targetWindow,
    () => cb(readOffset(element), false),
    instance.options.isScrollingResetDelay
  );
  const createHandler = (isScrolling) => () => {
    offset = readOffset(element);
    fallback == null ? void 0 : fallback();
    cb(offset, isScrolling);
  };
  const handler = createHandler(true);
  const endHandler = createHandler(false);
  element.addEventListener("scroll", handler, addEventListenerOptions);
  if (registerScrollendEvent) {
    element.addEventListener("scrollend", endHandler, addEventListenerOptions);
  }
  return () => {
    element.removeEventListener("scroll", handler);
    if (registerScrollendEvent) {
      element.removeEventListener("scrollend", endHandler);
    }
    fallback == null ? void 0 : fallback.cancel();
  };
};
const observeElementOffset = (instance, cb) => observeOffset(instance, cb, (el) => {
  const { horizontal, isRtl } = instance.options;
  return horizontal ? el.scrollLeft * (isRtl && -1 || 1) : el.scrollTop;
});
const observeWindowOffset = (instance, cb) => observeOffset(
  instance,
  cb,
  (win) => instance.options.horizontal ? win.scrollX : win.scrollY
);
const measureElement = (element, entry, instance) => {
  if (instance.options.useCachedMeasurements) {
    const index = instance.indexFromElement(element);
    const key = instance.options.getItemKey(index);
    return instance.itemSizeCache.get(key) ?? instance.options.estimateSize(index);
  }
  if (entry == null ? void 0 : entry.borderBoxSize) {
    const box = entry.borderBoxSize[0];
    if (box) {
      const size = Math.round(
        box[instance.options.horizontal ? "inlineSize" : "blockSize"]
      );
      return size;
    }
  }
  if (!entry) {
    const index = instance.indexFromElement(element);
    const key = instance.options.getItemKey(index);
    const cachedSize = instance.itemSizeCache.get(key);
    if (cachedSize !== void 0) {
      return cachedSize;
    }
  }
  return element[instance.options.horizontal ? "offsetWidth" : "offsetHeight"];
};
const scrollWithAdjustments = (offset, {
  adjustments = 0,
  behavior
}, instance) => {
  var _a;
  const { scrollElement, options } = instance;
  const adjustedOffset = offset + adjustments;
  const isRtlElement = options.horizontal && options.isRtl && scrollElement !== null && "ownerDocument" in scrollElement;
  (_a = scrollElement == null ? void 0 : scrollElement.scrollTo) == null ? void 0 : _a.call(scrollElement, {
    [options.horizontal ? "left" : "top"]: isRtlElement ? -adjustedOffset : adjustedOffset,
    behavior
  });
};
const windowScroll = scrollWithAdjustments;
const elementScroll = scrollWithAdjustments;
const initialScrollPhase = (behavior, atTarget) => behavior === "smooth" ? atTarget ? "smoothLanded" : "smooth" : "instant";
const isSmoothScroll = (state) => (state == null ? void 0 : state.phase) === "smooth" || (state == null ? void 0 : state.phase) === "smoothLanded";
function isAppendWithTrim(prevCount, nextCount, getPreviousKey, getNextKey) {
  if (nextCount === 0) return false;
  const firstKey = getNextKey(0);
  const removedKeys = /* @__PURE__ */ new Set();
  let removedCount = 0;
  while (removedCount < prevCount) {
    const key = getPreviousKey(removedCount);
    if (key === firstKey) break;
    removedKeys.add(key);
    removedCount++;
  }
  const retainedCount = prevCount - removedCount;
  if (retainedCount === 0 || retainedCount >= nextCount) return false;
  for (let i = 0; i < retainedCount; i++) {
    if (getNextKey(i) !== getPreviousKey(removedCount + i)) return false;
  }
  for (let i = retainedCount; i < nextCount; i++) {
    if (removedKeys.has(getNextKey(i))) return false;
  }
  return true;
}
class Virtualizer {
  constructor(opts) {
    this.unsubs = [];
    this.scrollElement = null;
    this.targetWindow = null;
    this.isScrolling = false;
    this.scrollState = null;
    this.measurementsCache = [];
    this._singleLaneMeasurements = null;
    this.itemSizeCache = /* @__PURE__ */ new Map();
    this.itemSizeCacheVersion = 0;
    this.laneAssignments = /* @__PURE__ */ new Map();
    this.pendingMin = null;
    this.prevLanes = void 0;
    this.lanesChangedFlag = false;
    this.lanesSettling = false;
    this.pendingScrollAnchor = null;
    this.scrollRect = null;
    this.scrollOffset = null;
    this.scrollDirection = null;
    this._holdOffset = 0;
    this._reportedOverscroll = false;
    this._iosGesture = new IosGesture({
      getWindow: () => this.targetWindow,
      now: () => this.now(),
      // The end of a fling can move less than a pixel per scroll event, so
      // events can stop for 150ms while the fling is still running (seen on
      // an iPhone, 27.0.1). A command waiting for it would then be written
      // into the fling and overridden. The element having moved since the
      // last event means it has not ended: wait again. Not while our own
      // write has yet to report: that moved it.
      tailStillMoving: () => {
        const state = this.scrollState;
        if ((state == null ? void 0 : state.phase) !== "queued" || this.pendingWrite !== null) {
          return false;
        }
        const now = this._readElementOffset();
        if (now === null || this._lastElementOffset === null || Math.abs(now - this._lastElementOffset) < 1) {
          return false;
        }
        this._lastElementOffset = now;
        state.samples = [...state.samples ?? [], { t: this.now(), offset: now }];
        return true;
      },
      onTailClosed: () => {
        const state = this.scrollState;
        if ((state == null ? void 0 : state.phase) === "queued" && flingCaught(state.samples ?? [])) {
          this.scrollState = null;
        }
        this._flushHoldIfReady(true);
        this._writeAwaitingCommand();
        this._retryClampedAdjustment();
      }
    });
    this._lastElementOffset = null;
    this.pendingWrite = null;
    this._clampedAdjustment = null;
    this.elementsCache = /* @__PURE__ */ new Map();
    this._resizeBatch = null;
    this.now = () => {
      var _a, _b, _c;
      return ((_c = (_b = (_a = this.targetWindow) == null ? void 0 : _a.performance) == null ? void 0 : _b.now) == null ? void 0 : _c.call(_b)) ?? Date.now();
    };
    this.observer = /* @__PURE__ */ (() => {
      let _ro = null;
      let _frames = null;
      let delivering = false;
      let observeQueued = false;
      const pendingObservations = /* @__PURE__ */ new Set();
      const get = () => {
        if (_ro) {
          return _ro;
        }
        const targetWindow = this.targetWindow;
        if (!targetWindow || !targetWindow.ResizeObserver) {
          return null;
        }
        const frames = _frames = createFrameQueue(targetWindow);
        return _ro = new targetWindow.ResizeObserver((entries) => {
          const run = () => {
            const batch = { sync: false };
            this._resizeBatch = batch;
            try {
              entries.forEach(measureEntry);
            } finally {
              this._resizeBatch = null;
              if (batch.notify) {
                this.notify(batch.sync);
                this._noteClampMax();
                this._flushHoldIfReady(true);
                this._retryClampedAdjustment();
                this.measureElement(null);
              }
            }
          };
          if (this.options.useAnimationFrameWithResizeObserver) {
            frames.schedule(run);
          } else {
            delivering = true;
            try {
              run();
            } finally {
              delivering = false;
            }
          }
        });
      };
      const measureEntry = (entry) => {
        const node = entry.target;
        const index = this.indexFromElement(node);
        if (!node.isConnected) {
          this.observer.unobserve(node);
          for (const [cacheKey, cachedNode] of this.elementsCache) {
            if (cachedNode === node) {
              this.elementsCache.delete(cacheKey);
              break;
            }
          }
          return;
        }
        if (!this.isIndexInRange(index)) return;
        if (this.shouldMeasureDuringScroll(index)) {
          this.resizeItem(index, this.options.measureElement(node, entry, this));
        }
      };
      return {
        disconnect: () => {
          var _a;
          (_a = get()) == null ? void 0 : _a.disconnect();
          _frames == null ? void 0 : _frames.cancel();
          pendingObservations.clear();
          observeQueued = false;
          _ro = null;
          _frames = null;
        },
        observe: (target) => {
          const observer = get();
          if (!observer) return;
          if (!delivering) {
            observer.observe(target, { box: "border-box" });
            return;
          }
          pendingObservations.add(target);
          if (!observeQueued) {
            observeQueued = true;
            _frames == null ? void 0 : _frames.schedule(() => {
              observeQueued = false;
              pendingObservations.forEach((node) => {
                if (node.isConnected) _ro == null ? void 0 : _ro.observe(node, { box: "border-box" });
              });
              pendingObservations.clear();
            });
          }
        },
        unobserve: (target) => {
          var _a;
          pendingObservations.delete(target);
          (_a = get()) == null ? void 0 : _a.unobserve(target);
        }
      };
    })();
    this.range = null;
    this.setOptions = (opts2) => {
      var _a;
      const merged = {
        debug: false,
        initialOffset: 0,
        overscan: 1,
        paddingStart: 0,
        paddingEnd: 0,
        scrollPaddingStart: 0,
        scrollPaddingEnd: 0,
        horizontal: false,
        getItemKey: defaultKeyExtractor,
        rangeExtractor: defaultRangeExtractor,
        onChange: () => {
        },
        measureElement,
        initialRect: { width: 0, height: 0 },
        scrollMargin: 0,
        gap: 0,
        indexAttribute: "data-index",
        initialMeasurementsCache: [],
        lanes: 1,
        anchorTo: "start",
        followOnAppend: false,
        scrollEndThreshold: 1,
        isScrollingResetDelay: 150,
        enabled: true,
        isRtl: false,
        useScrollendEvent: false,
        useAnimationFrameWithResizeObserver: false,
        laneAssignmentMode: "estimate",
        useCachedMeasurements: false
      };
      for (const key in opts2) {
        const v = opts2[key];
        if (v !== void 0) merged[key] = v;
      }
      const prevOptions = this.options;
      let anchor = null;
      let followOnAppend = null;
      let edgeKeysChanged = false;
      if (prevOptions !== void 0 && prevOptions.enabled && merged.enabled && merged.anchorTo === "end" && this.scrollElement !== null) {
        const prevCount = prevOptions.count;
        const nextCount = merged.count;
        const measurements = this.getMeasurements();
        const previousItems = ((_a = this._singleLaneMeasurements) == null ? void 0 : _a.items) ?? measurements;
        const getPreviousKey = (index) => getMeasurementKey(previousItems[index]);
        const prevFirstKey = prevCount > 0 ? getPreviousKey(0) : null;
        const prevLastKey = prevCount > 0 ? getPreviousKey(prevCount - 1) : null;
        const didCountChange = nextCount !== prevCount;
        const didEdgeKeysChange = didCountChange || prevCount > 0 && nextCount > 0 && (merged.getItemKey(0) !== prevFirstKey || merged.getItemKey(nextCount - 1) !== prevLastKey);
        if (didEdgeKeysChange) {
          edgeKeysChanged = true;
          const item = prevCount > 0 ? this.getVirtualItemForOffset(this.getScrollOffset()) ?? measurements[0] : null;
          if (item) {
            anchor = [item.key, this.getScrollOffset() - item.start];
          }
          const behavior = merged.followOnAppend === true ? "auto" : merged.followOnAppend || null;
          if (behavior && nextCount > 0 && this.isAtEnd(prevOptions.scrollEndThreshold) && (prevCount === 0 || merged.getItemKey(nextCount - 1) !== prevLastKey)) {
            if (nextCount > prevCount || isAppendWithTrim(
              prevCount,
              nextCount,
              getPreviousKey,
              merged.getItemKey
            )) {
              followOnAppend = behavior;
            }
          }
        }
      }
      this.options = merged;
      if (edgeKeysChanged) {
        this.pendingMin = 0;
        this.itemSizeCacheVersion++;
      }
      let anchorDelta = null;
      if (anchor && this.scrollOffset !== null && !this._awaitingCommandReadBack()) {
        const [anchorKey, anchorOffset] = anchor;
        const newMeasurements = this.getMeasurements();
        const { count, getItemKey } = this.options;
        let idx = 0;
        while (idx < count && getItemKey(idx) !== anchorKey) {
          idx++;
        }
        if (idx < count) {
          const anchorItem = newMeasurements[idx];
          if (anchorItem) {
            const newOffset = Math.max(0, anchorItem.start + anchorOffset);
            if (!followOnAppend && newOffset !== this.scrollOffset) {
              anchorDelta = newOffset - this.scrollOffset;
              this.scrollOffset = newOffset;
            }
          }
        }
      }
      if (followOnAppend) {
        this.pendingScrollAnchor = { kind: "follow", behavior: followOnAppend };
      } else if (anchorDelta !== null) {
        if (this._canWriteScroll()) {
          this.pendingScrollAnchor = { kind: "anchor", delta: anchorDelta };
        } else {
          this._holdOffset += anchorDelta;
          this._followOffsetTarget(anchorDelta);
        }
      }
    };
    this.notify = (sync) => {
      var _a, _b;
      (_b = (_a = this.options).onChange) == null ? void 0 : _b.call(_a, this, sync);
    };
    this.maybeNotify = memo(
      () => {
        this.calculateRange();
        return [
          this.isScrolling,
          this.range ? this.range.startIndex : null,
          this.range ? this.range.endIndex : null
        ];
      },
      (isScrolling) => {
        this.notify(isScrolling);
      },
      {
        key: "production" !== "production" && "maybeNotify",
        debug: () => this.options.debug,
        initialDeps: [
          this.isScrolling,
          this.range ? this.range.startIndex : null,
          this.range ? this.range.endIndex : null
        ]
      }
    );
    this.cleanup = () => {
      var _a;
      this.unsubs.filter(Boolean).forEach((d) => d());
      this.unsubs = [];
      this.observer.disconnect();
      if (this.rafId != null && this.targetWindow) {
        this.targetWindow.cancelAnimationFrame(this.rafId);
        this.rafId = null;
      }
      this.scrollState = null;
      (_a = this._momentumStop) == null ? void 0 : _a.restore();
      this._momentumStop = null;
      this.isScrolling = false;
      this.scrollDirection = null;
      this._holdOffset = 0;
      this._reportedOverscroll = false;
      this._clampedAdjustment = null;
      this.pendingWrite = null;
      this.scrollElement = null;
      this.targetWindow = null;
    };
    this._didMount = () => {
      return () => {
        this.cleanup();
      };
    };
    this._willUpdate = () => {
      var _a;
      const scrollElement = this.options.enabled ? this.options.getScrollElement() : null;
      if (this.scrollElement !== scrollElement) {
        this.cleanup();
        if (!scrollElement) {
          this.maybeNotify();
          return;
        }
        this.scrollElement = scrollElement;
        if (this.scrollElement && "ownerDocument" in this.scrollElement) {
          this.targetWindow = this.scrollElement.ownerDocument.defaultView;
        } else {
          this.targetWindow = ((_a = this.scrollElement) == null ? void 0 : _a.window) ?? null;
        }
        this.elementsCache.forEach((cached) => {
          this.observer.observe(cached);
        });
        this.unsubs.push(
          this.options.observeElementRect(this, (rect) => {
            this.scrollRect = rect;
            this.maybeNotify();
          })
        );
        this.unsubs.push(
          this.options.observeElementOffset(this, (offset, isScrolling) => {
            var _a2, _b, _c, _d;
            const elementMax = isScrolling ? this._elementMaxScrollOffset() : null;
            const wasOverscrolled = this._reportedOverscroll;
            this._reportedOverscroll = offset < 0 || elementMax !== null && offset > elementMax + 1;
            const elementOffset = offset;
            this._lastElementOffset = elementOffset;
            offset = this._toLayoutOffset(offset);
            const kind = this._classifyScrollEvent(
              offset,
              isScrolling,
              elementMax
            );
            if (kind === "spurious") return;
            if (kind === "readBack") {
              offset = this.pendingWrite.target;
            } else if (kind === "clampedReadBack" && ((_a2 = this.scrollState) == null ? void 0 : _a2.index) != null && // Not `elementMax`: an adapter can report the read-back at rest.
            offset < this.getMaxScrollOffset() - 1.5) {
              this.scrollState.lastTargetOffset = offset;
            } else if (externalRetiresCommand({
              kind,
              offset,
              command: this.scrollState,
              target: () => this.getScrollStateTarget(this.scrollState)
            })) {
              this.scrollState = null;
            }
            this.pendingWrite = null;
            if (this._clampedAdjustment !== null && Math.abs(offset - this._clampedAdjustment.maxAtWrite) >= 1.5) {
              this._clampedAdjustment = null;
            }
            const prevOffset = this.getScrollOffset();
            const prevDirection = this.scrollDirection;
            this.scrollDirection = isScrolling ? prevOffset === offset ? this.scrollDirection : prevOffset < offset ? "forward" : "backward" : null;
            this.scrollOffset = offset;
            this.isScrolling = isScrolling;
            const queued = this.scrollState;
            if ((queued == null ? void 0 : queued.phase) === "queued" && kind === "external" && isScrolling) {
              if (wasOverscrolled || this._reportedOverscroll) {
                queued.samples = [];
              } else {
                const t = this.now();
                queued.samples = [
                  ...(queued.samples ?? []).filter(
                    (sample) => t - sample.t <= 200
                  ),
                  { t, offset: elementOffset }
                ];
                if (prevDirection !== null && this.scrollDirection !== prevDirection || flingSpedUp(queued.samples)) {
                  this.scrollState = null;
                }
              }
            }
            if (this._iosGesture.onScroll({
              isScrolling,
              ownReadBack: kind === "readBack",
              moved: offset !== prevOffset,
              // Neither our write's read-back nor a frame of our smooth
              // animation: the user or a fling moved it.
              external: kind === "external" && ((_b = this.scrollState) == null ? void 0 : _b.phase) !== "smooth" && ((_c = this.scrollState) == null ? void 0 : _c.phase) !== "smoothFinishing"
            }) && // The user scrolls: a command still waiting for the tail is
            // theirs to override, like a written one would be.
            ((_d = this.scrollState) == null ? void 0 : _d.phase) === "queued") {
              this.scrollState = null;
            }
            this._flushHoldIfReady(true);
            if (this.scrollState) {
              this.scheduleScrollReconcile();
            }
            this.maybeNotify();
          })
        );
        if ("addEventListener" in this.scrollElement) {
          this.unsubs.push(
            this._iosGesture.listen(this.scrollElement)
          );
        }
        this._scrollToOffset(this.getScrollOffset());
      }
      this._noteClampMax();
      const anchor = this.pendingScrollAnchor;
      this.pendingScrollAnchor = null;
      if (anchor && this.scrollElement && this.options.enabled) {
        if (anchor.kind === "anchor") {
          if (!this._canWriteScroll()) {
            this._holdOffset += anchor.delta;
            this._followOffsetTarget(anchor.delta);
            this.notify(false);
          } else if (isSmoothScroll(this.scrollState) && !approxEqual(
            this.getScrollOffset() - anchor.delta,
            this.scrollState.lastTargetOffset
          )) ;
          else {
            this._followOffsetTarget(anchor.delta);
            this._scrollToOffset(this.getScrollOffset());
          }
        } else {
          this.scrollToEnd({ behavior: anchor.behavior });
        }
      }
      this._flushHoldIfReady(false);
      this._retryClampedAdjustment();
    };
    this._classifyScrollEvent = (offset, isScrolling, elementMax) => {
      var _a;
      return classifyScrollEvent({
        offset,
        isScrolling,
        elementMax,
        holdOffset: this._holdOffset,
        scrollOffset: this.scrollOffset,
        pendingWrite: this.pendingWrite,
        clampedMaxAtWrite: ((_a = this._clampedAdjustment) == null ? void 0 : _a.maxAtWrite) ?? null
      });
    };
    this._retryClampedAdjustment = () => {
      if (this._clampedAdjustment === null || !this.scrollElement || !this.options.enabled || !this._canWriteScroll()) {
        return;
      }
      const { target, maxAtWrite } = this._clampedAdjustment;
      const max = this.getMaxScrollOffset();
      if (max > maxAtWrite + 0.5) {
        this._clampedAdjustment = target > max + 0.5 ? { target, maxAtWrite: max } : null;
        this._scrollToOffset(target);
      }
    };
    this._writeAwaitingCommand = () => {
      const state = this.scrollState;
      if (state === null || state.phase !== "queued") return;
      const { behavior } = state;
      this.getMeasurements();
      const offset = this.getScrollStateTarget(state);
      state.lastTargetOffset = offset;
      this._clampedAdjustment = null;
      state.phase = initialScrollPhase(
        behavior,
        state.index != null && approxEqual(offset, this.getScrollOffset())
      );
      this._scrollToOffset(offset, { behavior });
      this.scheduleScrollReconcile();
    };
    this._readElementOffset = () => {
      const el = this.scrollElement;
      if (el == null) return null;
      const { horizontal, isRtl } = this.options;
      if (typeof el.scrollTop === "number") {
        return horizontal ? el.scrollLeft * (isRtl && -1 || 1) : el.scrollTop;
      }
      if (typeof el.scrollY === "number") {
        return horizontal ? el.scrollX : el.scrollY;
      }
      return null;
    };
    this._canWriteScroll = () => !(isIOSWebKit() && this._iosGesture.inMotion()) && !this._reportedOverscroll;
    this._flushHoldIfReady = (sync) => {
      var _a;
      if (this._holdOffset === 0) return;
      if (!this.scrollElement || !this.options.enabled) return;
      if (!this._canWriteScroll()) return;
      if (((_a = this.scrollState) == null ? void 0 : _a.phase) === "smooth") return;
      this._holdOffset = 0;
      if (this.scrollOffset !== null && this.scrollOffset < 0) {
        this.scrollOffset = 0;
      }
      this.notify(sync);
      const target = this.getCommandWrittenOffset() ?? this.getScrollOffset();
      this._clampedAdjustment = this._clampedBy(target);
      this._scrollToOffset(target);
    };
    this.rafId = null;
    this.getSize = () => {
      if (!this.options.enabled) {
        this.scrollRect = null;
        return 0;
      }
      this.scrollRect = this.scrollRect ?? this.options.initialRect;
      return this.scrollRect[this.options.horizontal ? "width" : "height"];
    };
    this.getScrollOffset = () => {
      if (!this.options.enabled) {
        this.scrollOffset = null;
        return 0;
      }
      this.scrollOffset = this.scrollOffset ?? (typeof this.options.initialOffset === "function" ? this.options.initialOffset() : this.options.initialOffset);
      return this.scrollOffset;
    };
    this.getMeasurementOptions = memo(
      () => [
        this.options.count,
        this.options.paddingStart,
        this.options.scrollMargin,
        this.options.getItemKey,
        this.options.enabled,
        this.options.lanes,
        this.options.laneAssignmentMode,
        this.options.gap
      ],
      (count, paddingStart, scrollMargin, getItemKey, enabled, lanes, laneAssignmentMode, gap) => {
        const lanesChanged = this.prevLanes !== void 0 && this.prevLanes !== lanes;
        if (lanesChanged) {
          this.lanesChangedFlag = true;
        }
        this.prevLanes = lanes;
        this.pendingMin = null;
        return {
          count,
          paddingStart,
          scrollMargin,
          getItemKey,
          enabled,
          lanes,
          laneAssignmentMode,
          gap
        };
      },
      {
        key: false
      }
    );
    this.isIndexInRange = (index) => index >= 0 && index < this.options.count;
    this.getMeasurements = memo(
      () => [this.getMeasurementOptions(), this.itemSizeCacheVersion],
      ({
        count,
        paddingStart,
        scrollMargin,
        getItemKey,
        enabled,
        lanes,
        laneAssignmentMode,
        gap
      }, _itemSizeCacheVersion) => {
        var _a;
        const itemSizeCache = this.itemSizeCache;
        if (!enabled) {
          this.measurementsCache = [];
          this._singleLaneMeasurements = null;
          this.itemSizeCache.clear();
          this.laneAssignments.clear();
          return [];
        }
        if (this.laneAssignments.size > count) {
          for (const index of this.laneAssignments.keys()) {
            if (index >= count) {
              this.laneAssignments.delete(index);
            }
          }
        }
        if (this.lanesChangedFlag) {
          this.lanesChangedFlag = false;
          this.lanesSettling = true;
          this.measurementsCache = [];
          this._singleLaneMeasurements = null;
          this.itemSizeCache.clear();
          this.laneAssignments.clear();
          this.pendingMin = null;
        }
        if (this.measurementsCache.length === 0 && !this.lanesSettling) {
          this.measurementsCache = this.options.initialMeasurementsCache;
          this.measurementsCache.forEach((item) => {
            this.itemSizeCache.set(item.key, item.size);
          });
        }
        const min = this.lanesSettling ? 0 : this.pendingMin ?? 0;
        this.pendingMin = null;
        if (this.lanesSettling && this.measurementsCache.length === count) {
          this.lanesSettling = false;
        }
        if (lanes === 1) {
          const need = count * 2;
          let flat = (_a = this._singleLaneMeasurements) == null ? void 0 : _a.flat;
          if (!flat || flat.length < need) {
            const next = new Float64Array(need);
            if (flat && min > 0) next.set(flat.subarray(0, min * 2));
            flat = next;
          }
          const items = min === 0 ? new Array(count) : this._singleLaneMeasurements.items.slice();
          let runningStart;
          if (min === 0) {
            runningStart = paddingStart + scrollMargin;
          } else {
            const prevIdx = min - 1;
            runningStart = flat[prevIdx * 2] + flat[prevIdx * 2 + 1] + gap;
          }
          for (let i = min; i < count; i++) {
            const key = getItemKey(i);
            items[i] = key;
            const measuredSize = itemSizeCache.get(key);
            const size = typeof measuredSize === "number" ? measuredSize : this.options.estimateSize(i);
            flat[i * 2] = runningStart;
            flat[i * 2 + 1] = size;
            runningStart += size + gap;
          }
          this._singleLaneMeasurements = { flat, items };
          const view = createLazyMeasurementsView(items, flat);
          this.measurementsCache = view;
          return view;
        }
        const measurements = this.measurementsCache.slice(0, min);
        const laneLastIndex = new Array(lanes).fill(
          void 0
        );
        const laneEnds = new Float64Array(lanes);
        let filledLanes = 0;
        for (let m = 0; m < min; m++) {
          const item = measurements[m];
          if (item) {
            if (laneLastIndex[item.lane] === void 0) filledLanes++;
            laneLastIndex[item.lane] = m;
            laneEnds[item.lane] = item.end;
          }
        }
        for (let i = min; i < count; i++) {
          const key = getItemKey(i);
          const cachedLane = this.laneAssignments.get(i);
          let lane;
          let start;
          const shouldCacheLane = laneAssignmentMode === "estimate" || itemSizeCache.has(key);
          if (cachedLane !== void 0 && this.options.lanes > 1) {
            lane = cachedLane;
            const prevIndex = laneLastIndex[lane];
            const prevInLane = prevIndex !== void 0 ? measurements[prevIndex] : void 0;
            start = prevInLane ? prevInLane.end + gap : paddingStart + scrollMargin;
          } else if (filledLanes === lanes) {
            let bestLane = 0;
            let bestEnd = laneEnds[0];
            let bestIdx = laneLastIndex[0];
            for (let l = 1; l < lanes; l++) {
              const e = laneEnds[l];
              if (e < bestEnd || e === bestEnd && laneLastIndex[l] < bestIdx) {
                bestLane = l;
                bestEnd = e;
                bestIdx = laneLastIndex[l];
              }
            }
            lane = bestLane;
            start = bestEnd + gap;
            if (shouldCacheLane) {
              this.laneAssignments.set(i, lane);
            }
          } else {
            lane = i % this.options.lanes;
            start = paddingStart + scrollMargin;
            if (shouldCacheLane) {
              this.laneAssignments.set(i, lane);
            }
          }
          const measuredSize = itemSizeCache.get(key);
          const size = typeof measuredSize === "number" ? measuredSize : this.options.estimateSize(i);
          const end = start + size;
          measurements[i] = {
            index: i,
            start,
            size,
            end,
            key,
            lane
          };
          if (laneLastIndex[lane] === void 0) filledLanes++;
          laneLastIndex[lane] = i;
          laneEnds[lane] = end;
        }
        this.measurementsCache = measurements;
        return measurements;
      },
      {
        key: "production" !== "production" && "getMeasurements",
        debug: () => this.options.debug
      }
    );
    this.calculateRange = memo(
      () => [
        this.getMeasurements(),
        this.getSize(),
        this.getScrollOffset(),
        this.options.lanes,
        // scrollOffset is measured in the scroll element and the layout total
        // from the list start, so the list ends scrollMargin further down.
        this._getLayoutTotalSize() + this.options.scrollMargin
      ],
      (measurements, outerSize, scrollOffset, lanes, listEnd) => {
        if (measurements.length === 0 || outerSize === 0) {
          this.range = null;
          return null;
        }
        const maxScrollOffset = Math.max(listEnd - outerSize, 0);
        this.range = calculateRangeImpl(
          measurements,
          outerSize,
          Math.min(scrollOffset, maxScrollOffset),
          lanes,
          // Pass the typed array so binary search + forward-walk can read
          // start/end directly from Float64Array, skipping the Proxy traps.
          lanes === 1 && this._singleLaneMeasurements !== null ? this._singleLaneMeasurements.flat : null
        );
        return this.range;
      },
      {
        key: "production" !== "production" && "calculateRange",
        debug: () => this.options.debug
      }
    );
    this.getVirtualIndexes = memo(
      () => {
        let startIndex = null;
        let endIndex = null;
        const range = this.calculateRange();
        if (range) {
          startIndex = range.startIndex;
          endIndex = range.endIndex;
        }
        this.maybeNotify.updateDeps([this.isScrolling, startIndex, endIndex]);
        return [
          this.options.rangeExtractor,
          this.options.overscan,
          this.options.count,
          startIndex,
          endIndex,
          this.options.lanes
        ];
      },
      (rangeExtractor, overscan, count, startIndex, endIndex, lanes) => {
        return startIndex === null || endIndex === null ? [] : rangeExtractor({
          startIndex,
          endIndex,
          overscan,
          count,
          lanes
        });
      },
      {
        key: "production" !== "production" && "getVirtualIndexes",
        debug: () => this.options.debug
      }
    );
    this.indexFromElement = (node) => {
      const attributeName = this.options.indexAttribute;
      const indexStr = node.getAttribute(attributeName);
      if (!indexStr) {
        console.warn(
          `Missing attribute name '${attributeName}={index}' on measured element.`
        );
        return -1;
      }
      return parseInt(indexStr, 10);
    };
    this.shouldMeasureDuringScroll = (index) => {
      var _a;
      if (!isSmoothScroll(this.scrollState)) {
        return true;
      }
      const scrollIndex = this.scrollState.index ?? ((_a = this.getVirtualItemForOffset(this.scrollState.lastTargetOffset)) == null ? void 0 : _a.index);
      if (scrollIndex !== void 0 && this.range) {
        const bufferSize = Math.max(
          this.options.overscan,
          Math.ceil((this.range.endIndex - this.range.startIndex) / 2)
        );
        const minIndex = Math.max(0, scrollIndex - bufferSize);
        const maxIndex = Math.min(
          this.options.count - 1,
          scrollIndex + bufferSize
        );
        return index >= minIndex && index <= maxIndex;
      }
      return true;
    };
    this.measureElement = (node) => {
      if (!node) {
        this.elementsCache.forEach((cached, key2) => {
          if (!cached.isConnected) {
            this.observer.unobserve(cached);
            this.elementsCache.delete(key2);
          }
        });
        return;
      }
      const index = this.indexFromElement(node);
      if (!this.isIndexInRange(index)) return;
      const key = this.options.getItemKey(index);
      const prevNode = this.elementsCache.get(key);
      if (prevNode !== node) {
        if (prevNode) {
          this.observer.unobserve(prevNode);
        }
        this.observer.observe(node);
        this.elementsCache.set(key, node);
      }
      if (node.isConnected && (!this.isScrolling || this.scrollState) && this.shouldMeasureDuringScroll(index)) {
        this.resizeItem(index, this.options.measureElement(node, void 0, this));
      }
    };
    this.resizeItem = (index, size) => {
      var _a, _b, _c;
      if (!this.isIndexInRange(index)) return;
      if ((_a = this._resizeBatch) == null ? void 0 : _a.sync) this.getMeasurements();
      let cachedSize;
      let itemStart;
      let key;
      const flat = (_b = this._singleLaneMeasurements) == null ? void 0 : _b.flat;
      if (this.options.lanes === 1 && flat != null) {
        key = this.options.getItemKey(index);
        itemStart = flat[index * 2];
        cachedSize = flat[index * 2 + 1];
      } else {
        const item = this.measurementsCache[index];
        if (!item) return;
        key = item.key;
        itemStart = item.start;
        cachedSize = item.size;
      }
      const itemSize = this.itemSizeCache.get(key) ?? cachedSize;
      const delta = size - itemSize;
      if (delta !== 0) {
        const wasAtEnd = this.options.anchorTo === "end" && !isSmoothScroll(this.scrollState) && this.getVirtualDistanceFromEnd() <= this.options.scrollEndThreshold;
        const prevTotalSize = wasAtEnd ? this._getLayoutTotalSize() : 0;
        const scrollOffset = this.getScrollOffset();
        const isFirstMeasure = !this.itemSizeCache.has(key);
        const defaultShouldAdjust = isFirstMeasure ? (
          // First measurement: compensate any item whose top sits above the
          // fold — the estimate→actual delta must be corrected regardless of
          // scroll direction, since the whole estimated block was above it.
          itemStart < scrollOffset
        ) : (
          // Re-measurement: only compensate an item that is ENTIRELY above the
          // fold. An item that merely *spans* the fold (top above, bottom
          // below — e.g. a streaming chat message growing at its bottom)
          // changes size *below* the anchor point, so shifting scrollTop by the
          // delta would drag the viewport downward on every growth (#1218).
          // Also skip during backward scroll to avoid the "items jump while
          // scrolling up" cascade.
          itemStart + itemSize <= scrollOffset && this.scrollDirection !== "backward"
        );
        const shouldAdjustScroll = !isSmoothScroll(this.scrollState) && (this.shouldAdjustScrollPositionOnItemSizeChange !== void 0 ? this.shouldAdjustScrollPositionOnItemSizeChange(
          // The callback expects a VirtualItem; build one lazily only
          // when the consumer actually supplied a custom predicate.
          this.measurementsCache[index] ?? {
            index,
            key,
            start: itemStart,
            size: cachedSize,
            end: itemStart + cachedSize,
            lane: 0
          },
          delta,
          this
        ) : defaultShouldAdjust);
        if (this.pendingMin === null || index < this.pendingMin) {
          this.pendingMin = index;
        }
        this.itemSizeCache.set(key, size);
        this.itemSizeCacheVersion++;
        let adjustedSync = false;
        if (!this._awaitingCommandReadBack()) {
          if (wasAtEnd) {
            adjustedSync = this.applyScrollAdjustment(
              this._getLayoutTotalSize() - prevTotalSize
            );
          } else if (shouldAdjustScroll) {
            adjustedSync = this.applyScrollAdjustment(delta);
          }
        }
        if (this._resizeBatch) {
          this._resizeBatch.notify = true;
          (_c = this._resizeBatch).sync || (_c.sync = adjustedSync);
          return;
        }
        this.notify(adjustedSync);
        this._noteClampMax();
        this._flushHoldIfReady(true);
        this._retryClampedAdjustment();
      }
    };
    this.getVirtualItems = memo(
      () => [this.getVirtualIndexes(), this.getMeasurements(), this._holdOffset],
      (indexes, measurements, hold) => {
        const virtualItems = [];
        for (let k = 0, len = indexes.length; k < len; k++) {
          const i = indexes[k];
          const measurement = measurements[i];
          virtualItems.push(
            hold === 0 ? measurement : {
              ...measurement,
              start: measurement.start - hold,
              end: measurement.end - hold
            }
          );
        }
        return virtualItems;
      },
      {
        key: "production" !== "production" && "getVirtualItems",
        debug: () => this.options.debug
      }
    );
    this.getVirtualItemForOffset = (offset) => {
      var _a;
      const measurements = this.getMeasurements();
      if (measurements.length === 0) {
        return void 0;
      }
      const flat = (_a = this._singleLaneMeasurements) == null ? void 0 : _a.flat;
      const useFlat = this.options.lanes === 1 && flat != null;
      const idx = findNearestBinarySearch(
        0,
        measurements.length - 1,
        useFlat ? (i) => flat[i * 2] : (i) => notUndefined(measurements[i]).start,
        offset
      );
      return notUndefined(measurements[idx]);
    };
    this._noteClampMax = () => {
      if (!this._awaitingCommandReadBack()) return;
      const elementMax = this._elementMaxScrollOffset();
      if (elementMax === null) return;
      const write = this.pendingWrite;
      const max = Math.max(elementMax, 0) + this._holdOffset;
      if (max >= write.target) return;
      const lowMaxes = write.lowMaxes ?? (write.lowMaxes = []);
      if (lowMaxes[lowMaxes.length - 1] !== max) lowMaxes.push(max);
    };
    this.getMaxScrollOffset = () => (this._elementMaxScrollOffset() ?? 0) + this._holdOffset;
    this._toLayoutOffset = (elementOffset) => {
      var _a;
      let offset = elementOffset + this._holdOffset;
      if (((_a = this.pendingScrollAnchor) == null ? void 0 : _a.kind) === "anchor") {
        offset += this.pendingScrollAnchor.delta;
      }
      return offset;
    };
    this._elementMaxScrollOffset = () => {
      const el = this.scrollElement;
      if (el === null) return null;
      if ("scrollHeight" in el) {
        return this.options.horizontal ? el.scrollWidth - el.clientWidth : el.scrollHeight - el.clientHeight;
      }
      if ("document" in el) {
        const doc = el.document.documentElement;
        return this.options.horizontal ? doc.scrollWidth - el.innerWidth : doc.scrollHeight - el.innerHeight;
      }
      return null;
    };
    this._momentumStop = null;
    this._stopMomentum = (done) => {
      const el = this.scrollElement;
      const win = this.targetWindow;
      if (el === null || win === null) return;
      const scroller = "document" in el ? el.document.scrollingElement : el;
      if (!(scroller == null ? void 0 : scroller.style)) return;
      if (this._momentumStop) {
        this._momentumStop.done = done;
        return;
      }
      const { style } = scroller;
      const property = this.options.horizontal ? "overflow-x" : "overflow-y";
      const value = style.getPropertyValue(property);
      const priority = style.getPropertyPriority(property);
      const crossSize = () => this.options.horizontal ? scroller.clientHeight : scroller.clientWidth;
      const crossSizeBefore = crossSize();
      style.setProperty(property, "hidden", "important");
      if (crossSize() !== crossSizeBefore) {
        style.setProperty(property, value, priority);
        return;
      }
      const stop = {
        // False when the app replaced the hidden value: the fling may not
        // have stopped.
        restore: () => {
          if (style.getPropertyValue(property) !== "hidden" || style.getPropertyPriority(property) !== "important") {
            return false;
          }
          style.setProperty(property, value, priority);
          return true;
        },
        done
      };
      this._momentumStop = stop;
      win.requestAnimationFrame(
        () => win.requestAnimationFrame(() => {
          if (this._momentumStop !== stop) return;
          this._momentumStop = null;
          if (stop.restore()) stop.done();
        })
      );
    };
    this._clampedBy = (target) => {
      const elementMax = this._elementMaxScrollOffset();
      if (elementMax === null) return null;
      const maxAtWrite = elementMax + this._holdOffset;
      return target > maxAtWrite + 0.5 ? { target, maxAtWrite } : null;
    };
    this.getVirtualDistanceFromEnd = () => {
      return Math.max(
        this._getLayoutTotalSize() + this.options.scrollMargin - this.getSize() - this.getScrollOffset(),
        0
      );
    };
    this.getDistanceFromEnd = () => {
      return Math.max(this.getMaxScrollOffset() - this.getScrollOffset(), 0);
    };
    this.isAtEnd = (threshold = this.options.scrollEndThreshold) => {
      return this.getDistanceFromEnd() <= threshold;
    };
    this.getOffsetForAlignment = (toOffset, align, itemSize = 0) => {
      if (!this.scrollElement) return 0;
      const size = this.getSize();
      const scrollOffset = this.getScrollOffset();
      if (align === "auto") {
        align = toOffset >= scrollOffset + size ? "end" : "start";
      }
      if (align === "center") {
        toOffset += (itemSize - size) / 2;
      } else if (align === "end") {
        toOffset -= size;
      }
      const maxOffset = this.getMaxScrollOffset();
      return Math.max(Math.min(maxOffset, toOffset), 0);
    };
    this.getOffsetForIndex = (index, align = "auto") => {
      index = Math.max(0, Math.min(index, this.options.count - 1));
      const size = this.getSize();
      const scrollOffset = this.getScrollOffset();
      const item = this.getMeasurements()[index];
      if (!item) return;
      if (align === "auto") {
        if (item.end >= scrollOffset + size - this.options.scrollPaddingEnd) {
          align = "end";
        } else if (item.start <= scrollOffset + this.options.scrollPaddingStart) {
          align = "start";
        } else {
          return [scrollOffset, align];
        }
      }
      if (align === "end" && index === this.options.count - 1) {
        const maxOffset = this.getMaxScrollOffset();
        const toOffset2 = maxOffset - this.options.paddingEnd + this.options.scrollPaddingEnd;
        return [Math.max(Math.min(toOffset2, maxOffset), 0), align];
      }
      const toOffset = align === "end" ? item.end + this.options.scrollPaddingEnd : item.start - this.options.scrollPaddingStart;
      return [
        this.getOffsetForAlignment(toOffset, align, item.size),
        align
      ];
    };
    this.scrollToOffset = (toOffset, { align = "start", behavior = "auto" } = {}) => {
      this._startScroll(
        { index: null, align },
        this.getOffsetForAlignment(toOffset, align),
        behavior,
        "absolute"
      );
    };
    this.scrollToIndex = (index, {
      align: initialAlign = "auto",
      behavior = "auto"
    } = {}) => {
      index = Math.max(0, Math.min(index, this.options.count - 1));
      const offsetInfo = this.getOffsetForIndex(index, initialAlign);
      if (!offsetInfo) return;
      const [offset, align] = offsetInfo;
      this._startScroll({ index, align }, offset, behavior, "absolute");
    };
    this.scrollBy = (delta, { behavior = "auto" } = {}) => {
      const offset = this.getOffsetForAlignment(
        (this.getCommandWrittenOffset() ?? this.getScrollOffset()) + delta,
        "start"
      );
      this._startScroll(
        { index: null, align: "start" },
        offset,
        behavior,
        "relative"
      );
    };
    this.scrollToEnd = ({ behavior = "auto" } = {}) => {
      if (this.options.count > 0) {
        this._startScroll(
          { index: this.options.count - 1, align: "end", toEnd: true },
          Math.max(this.getMaxScrollOffset(), 0),
          behavior,
          "absolute"
        );
        return;
      }
      this.scrollToOffset(Math.max(this.getTotalSize() - this.getSize(), 0), {
        behavior
      });
    };
    this.cancelScroll = () => {
      if (this.rafId != null && this.targetWindow) {
        this.targetWindow.cancelAnimationFrame(this.rafId);
        this.rafId = null;
      }
      this.scrollState = null;
    };
    this.getTotalSize = () => Math.max(this._getLayoutTotalSize() - this._holdOffset, 0);
    this._getLayoutTotalSize = () => {
      var _a, _b;
      const measurements = this.getMeasurements();
      let end;
      if (measurements.length === 0) {
        end = this.options.paddingStart;
      } else if (this.options.lanes === 1) {
        const lastIdx = measurements.length - 1;
        const flat = (_a = this._singleLaneMeasurements) == null ? void 0 : _a.flat;
        if (flat != null) {
          end = flat[lastIdx * 2] + flat[lastIdx * 2 + 1];
        } else {
          end = ((_b = measurements[lastIdx]) == null ? void 0 : _b.end) ?? 0;
        }
      } else {
        const endByLane = Array(this.options.lanes).fill(null);
        let endIndex = measurements.length - 1;
        while (endIndex >= 0 && endByLane.some((val) => val === null)) {
          const item = measurements[endIndex];
          if (endByLane[item.lane] === null) {
            endByLane[item.lane] = item.end;
          }
          endIndex--;
        }
        end = Math.max(...endByLane.filter((val) => val !== null));
      }
      return Math.max(
        end - this.options.scrollMargin + this.options.paddingEnd,
        0
      );
    };
    this.takeSnapshot = () => {
      const snapshot = [];
      if (this.itemSizeCache.size === 0) return snapshot;
      const m = this.getMeasurements();
      for (const item of m) {
        if (item && this.itemSizeCache.has(item.key)) {
          snapshot.push({
            index: item.index,
            key: item.key,
            start: item.start,
            size: item.size,
            end: item.end,
            lane: item.lane
          });
        }
      }
      return snapshot;
    };
    this._scrollToOffset = (offset, {
      adjustments,
      behavior
    } = {}) => {
      const write = {
        target: offset + (adjustments ?? 0),
        smooth: behavior === "smooth"
      };
      this.pendingWrite = write;
      this.options.scrollToFn(
        offset - this._holdOffset,
        { behavior, adjustments },
        this
      );
      return write;
    };
    this.getCommandWrittenOffset = () => this.scrollState !== null && this.pendingWrite !== null && !this.pendingWrite.smooth ? this.pendingWrite.target : null;
    this._awaitingCommandReadBack = () => {
      const writtenOffset = this.getCommandWrittenOffset();
      return !(isIOSWebKit() && this._iosGesture.dragging()) && writtenOffset !== null && !approxEqual(writtenOffset, this.getScrollOffset());
    };
    this._followOffsetTarget = (delta) => {
      if (this.scrollState !== null && this.scrollState.index == null) {
        this.scrollState.lastTargetOffset += delta;
      }
    };
    this.measure = () => {
      this.pendingMin = null;
      this.itemSizeCache.clear();
      this.laneAssignments.clear();
      this.itemSizeCacheVersion++;
      this.notify(false);
    };
    this.setOptions(opts);
  }
  /**
   * @deprecated Always 0: a scroll correction is folded into `scrollOffset`
   * at once, so there is never an outstanding adjustment to add to it. Read
   * `scrollOffset` alone.
   */
  get scrollAdjustments() {
    return 0;
  }
  // Returns `true` when it performed a synchronous `scrollTop` write this
  // tick, `false` when the delta was zero or the write was deferred (iOS).
  // `resizeItem` uses that to decide whether the follow-up `notify` must be
  // synchronous so the grown transforms commit in the same paint (#1227).
  applyScrollAdjustment(delta, behavior) {
    if (delta === 0) return false;
    if ("production" !== "production" && this.options.debug) {
      console.info("correction", delta);
    }
    this._followOffsetTarget(delta);
    if (!this._canWriteScroll()) {
      this._holdOffset += delta;
      if (this.scrollOffset !== null) this.scrollOffset += delta;
      return true;
    } else {
      const offset = this.getScrollOffset();
      this._clampedAdjustment = this._clampedBy(offset + delta);
      const write = this._scrollToOffset(offset, {
        adjustments: delta,
        behavior
      });
      if (this.scrollOffset !== null) {
        if (this.pendingWrite === write) this.scrollOffset += delta;
        if (this.scrollOffset < 0) this.scrollOffset = 0;
      }
      return true;
    }
  }
  scheduleScrollReconcile() {
    if (!this.targetWindow) {
      this.scrollState = null;
      return;
    }
    if (this.rafId != null) return;
    this.rafId = this.targetWindow.requestAnimationFrame(() => {
      this.rafId = null;
      this.reconcileScroll();
    });
  }
  getScrollStateTarget(state) {
    const offsetInfo = state.toEnd ? [Math.max(this.getMaxScrollOffset(), 0)] : state.index != null ? this.getOffsetForIndex(state.index, state.align) : void 0;
    return offsetInfo ? offsetInfo[0] : state.lastTargetOffset;
  }
  reconcileScroll() {
    if (!this.scrollState) return;
    const el = this.scrollElement;
    if (!el) return;
    const MAX_RECONCILE_MS = 5e3;
    if (this.now() - this.scrollState.startedAt > MAX_RECONCILE_MS) {
      this.scrollState = null;
      return;
    }
    if (this.scrollState.phase === "queued") {
      this.scheduleScrollReconcile();
      return;
    }
    this.getMeasurements();
    const targetOffset = this.getScrollStateTarget(this.scrollState);
    const STABLE_FRAMES = this.scrollState.index == null ? 1 : this.options.useAnimationFrameWithResizeObserver ? 3 : 2;
    const targetChanged = targetOffset !== this.scrollState.lastTargetOffset;
    if (!targetChanged && approxEqual(targetOffset, this.getScrollOffset())) {
      if (this.scrollState.phase === "smooth") {
        this.scrollState.phase = "smoothLanded";
      } else if (this.scrollState.phase === "smoothFinishing") {
        this.scrollState.phase = "instant";
      }
      this.scrollState.stableFrames++;
      if (this.scrollState.stableFrames >= STABLE_FRAMES) {
        if (this.getScrollOffset() !== targetOffset) {
          this._scrollToOffset(targetOffset, { behavior: "auto" });
        }
        this.scrollState = null;
        return;
      }
    } else {
      this.scrollState.stableFrames = 0;
      if (targetChanged) {
        const viewport = this.getSize() || 600;
        const distance = Math.abs(targetOffset - this.getScrollOffset());
        const keepSmooth = isSmoothScroll(this.scrollState) && distance > viewport;
        this.scrollState.lastTargetOffset = targetOffset;
        if (keepSmooth) {
          this.scrollState.phase = "smooth";
        } else if (this.scrollState.phase === "smooth") {
          this.scrollState.phase = "smoothFinishing";
        } else if (this.scrollState.phase === "smoothLanded") {
          this.scrollState.phase = "instant";
        }
        this._scrollToOffset(targetOffset, {
          behavior: keepSmooth ? "smooth" : "auto"
        });
      }
    }
    this.scheduleScrollReconcile();
  }
  // Every scroll command starts here: it becomes the in-flight command,
  // writes its first target and leaves reconcile to retarget and retire it.
  //
  // Targets are layout offsets. A held correction is not dropped by a
  // command: the write lands the element `_holdOffset` short of the target,
  // under the rows exposed shifted by the same amount, and the flush moves
  // both together once a write is possible.
  //
  // An index or end target that is already at its offset starts a smooth
  // scroll as landed; an offset target never does, so its first scroll
  // event is read as the user's (see the scroll handler in `_willUpdate`).
  _startScroll(target, offset, behavior, kind) {
    this.pendingScrollAnchor = null;
    this._clampedAdjustment = null;
    const tail = this._iosGesture.tail();
    if (kind === "absolute" && tail !== null) {
      if (tail === "fling" && momentumOverridesWrites()) {
        this._stopMomentum(() => {
          const state = this.scrollState;
          if ((state == null ? void 0 : state.phase) !== "queued" || // A finger came down: it owns the scroll until it lifts.
          this._iosGesture.tail() !== "fling" || // In a bounce WebKit can drop the write (#1287): the tail
          // decides, as without the stop. (Not `flingCaught`: our stop
          // also ends the fling at speed, so a slow frame would read as
          // a catch and the tail would drop the command.)
          this._reportedOverscroll) {
            return;
          }
          this._iosGesture.end();
          this._flushHoldIfReady(true);
          this._writeAwaitingCommand();
        });
        this.scrollState = {
          ...target,
          startedAt: this.now(),
          lastTargetOffset: offset,
          stableFrames: 0,
          phase: "queued",
          behavior,
          samples: []
        };
        this.scheduleScrollReconcile();
        return;
      }
      this._iosGesture.end();
    }
    this.scrollState = {
      ...target,
      startedAt: this.now(),
      lastTargetOffset: offset,
      stableFrames: 0,
      behavior,
      phase: initialScrollPhase(
        behavior,
        target.index != null && approxEqual(offset, this.getScrollOffset())
      )
    };
    this._scrollToOffset(offset, { behavior });
    this.scheduleScrollReconcile();
  }
}
const findNearestBinarySearch = (low, high, getCurrentValue, value) => {
  while (low <= high) {
    const middle = (low + high) / 2 | 0;
    const currentValue = getCurrentValue(middle);
    if (currentValue < value) {
      low = middle + 1;
    } else if (currentValue > value) {
      high = middle - 1;
    } else {
      return middle;
    }
  }
  if (low > 0) {
    return low - 1;
  } else {
    return 0;
  }
};
function findNearestBinarySearchFlat(flat, high, value) {
  let low = 0;
  while (low <= high) {
    const middle = (low + high) / 2 | 0;
    const currentValue = flat[middle * 2];
    if (currentValue < value) {
      low = middle + 1;
    } else if (currentValue > value) {
      high = middle - 1;
    } else {
      return middle;
    }
  }
  return low > 0 ? low - 1 : 0;
}
function calculateRangeImpl(measurements, outerSize, scrollOffset, lanes, flat) {
  const lastIndex = measurements.length - 1;
  if (measurements.length <= lanes) {
    return { startIndex: 0, endIndex: lastIndex };
  }
  if (lanes === 1 && flat !== null) {
    const startIndex2 = findNearestBinarySearchFlat(
      flat,
      lastIndex,
      scrollOffset
    );
    let endIndex2 = startIndex2;
    const limit = scrollOffset + outerSize;
    while (endIndex2 < lastIndex && flat[endIndex2 * 2] + flat[endIndex2 * 2 + 1] < limit) {
      endIndex2++;
    }
    return { startIndex: startIndex2, endIndex: endIndex2 };
  }
  const getStart = (index) => measurements[index].start;
  let startIndex = findNearestBinarySearch(0, lastIndex, getStart, scrollOffset);
  let endIndex = startIndex;
  if (lanes === 1) {
    while (endIndex < lastIndex && measurements[endIndex].end < scrollOffset + outerSize) {
      endIndex++;
    }
  } else if (lanes > 1) {
    const endPerLane = Array(lanes).fill(0);
    while (endIndex < lastIndex && endPerLane.some((pos) => pos < scrollOffset + outerSize)) {
      const item = measurements[endIndex];
      endPerLane[item.lane] = item.end;
      endIndex++;
    }
    const startPerLane = Array(lanes).fill(scrollOffset + outerSize);
    while (startIndex >= 0 && startPerLane.some((pos) => pos >= scrollOffset)) {
      const item = measurements[startIndex];
      startPerLane[item.lane] = item.start;
      startIndex--;
    }
    startIndex = Math.max(0, startIndex - startIndex % lanes);
    endIndex = Math.min(lastIndex, endIndex + (lanes - 1 - endIndex % lanes));
  }
  return { startIndex, endIndex };
}
return { Virtualizer: Virtualizer, _resetIOSDetectionForTests: _resetIOSDetectionForTests, approxEqual: approxEqual, debounce: debounce, defaultKeyExtractor: defaultKeyExtractor, defaultRangeExtractor: defaultRangeExtractor, elementScroll: elementScroll, measureElement: measureElement, memo: memo, notUndefined: notUndefined, observeElementOffset: observeElementOffset, observeElementRect: observeElementRect, observeWindowOffset: observeWindowOffset, observeWindowRect: observeWindowRect, windowScroll: windowScroll };
})();
const $js_ui_virtual = (() => { // js/ui/virtual.js
// A list of any length: only the rows near the window exist. Heights are measured, since messages differ.
const { drawnNow: drawnNow, html: html, useEffect: useEffect, useLayoutEffect: useLayoutEffect, useReducer: useReducer, useRef: useRef } = $js_lib;
const { Virtualizer: Virtualizer, defaultRangeExtractor: defaultRangeExtractor, observeElementOffset: observeElementOffset, observeElementRect: observeElementRect } = $vendor_virtual_core_index;

/** What a person does to scroll; from then on the list no longer holds on to its target. */
const BY_HAND = ["wheel", "touchstart", "pointerdown", "keydown"];
const OFF_BY_PX = 1.5;
const sameIndex = (index) => index;

/**
 * What is at the upper edge stays there while heights above it change. A target stays where it was scrolled to, however
 * late the rows around it come, until somebody scrolls. The row that has the focus exists wherever the window is.
 *
 * @param {object} props
 * @param {number} props.count  how many rows there are
 * @param {(index: number) => any} props.row  renders one
 * @param {number} props.estimate  height in pixels of a row that was not measured yet
 * @param {string} props.label  what the list is called
 * @param {string} props.height  CSS height of the scrolled window
 * @param {(first: number, last: number) => void} [props.onRange]  told which rows are wanted, some outside the window too
 * @param {(first: number, last: number) => void} [props.onVisible]  told which rows are in the window
 * @param {{index: number, align?: string, focus?: boolean, isStart?: boolean}|null} [props.target]  where to
 *   scroll, each time it is a new object; `focus` puts the focus on the list, so that arrow keys scroll on from there;
 *   `isStart` leaves the page around the list where it is
 * @param {(index: number) => string|number} [props.rowKey]  the same function each time, lest all heights be looked up anew
 */
function VirtualList(props) {
  const { count, row, estimate, label, height = "70vh", onRange, onVisible, target, rowKey = sameIndex } = props;
  const { overscan = 6 } = props;
  const scroller = useRef(null);
  const [, draw] = useReducer((before) => before + 1, 0);
  const focused = useRef(null);
  const wanted = useRef(null);
  const instance = useRef(null);
  const isDrawing = useRef(true);
  isDrawing.current = true;
  const options = {
    count,
    getScrollElement: () => scroller.current,
    estimateSize: () => estimate,
    overscan,
    observeElementRect,
    observeElementOffset,
    scrollToFn: scrolled,
    getItemKey: rowKey,
    rangeExtractor: (range) => withRow(defaultRangeExtractor(range), focused.current, count),
    onChange: () => (isDrawing.current ? draw() : drawnNow(draw)),
  };
  if (instance.current === null) {
    instance.current = new Virtualizer(options);
    instance.current.shouldAdjustScrollPositionOnItemSizeChange = isAboveWindow;
  }
  const virtualizer = instance.current;
  virtualizer.setOptions(options);
  useEffect(() => virtualizer._didMount(), []);
  useLayoutEffect(() => {
    virtualizer._willUpdate();
    isDrawing.current = false;
  });
  useEffect(() => {
    const letGo = (event) => {
      wanted.current = endAskedFor(event, scroller.current, virtualizer.options.count);
      if (wanted.current === null) return;
      event.preventDefault(); // the browser would go where the end is by what was measured so far
      virtualizer.scrollToIndex(wanted.current.index, { align: wanted.current.align });
    };
    BY_HAND.forEach((kind) => scroller.current.addEventListener(kind, letGo, { passive: kind !== "keydown" }));
    return () => BY_HAND.forEach((kind) => scroller.current?.removeEventListener(kind, letGo));
  }, []);
  useEffect(() => {
    if (!target || count === 0) return;
    wanted.current = target;
    virtualizer.scrollToIndex(target.index, { align: target.align ?? "start" });
    if (!target.isStart) scroller.current.scrollIntoView({ block: "nearest" });
    if (target.focus) scroller.current.focus({ preventScroll: true });
  }, [target, count === 0]);
  useEffect(() => {
    const held = wanted.current;
    if (held === null || virtualizer.scrollState !== null) return;
    const place = virtualizer.getOffsetForIndex(held.index, held.align ?? "start");
    if (place && Math.abs(place[0] - scroller.current.scrollTop) > OFF_BY_PX) {
      virtualizer.scrollToIndex(held.index, { align: held.align ?? "start" });
    }
  });
  const rows = virtualizer.getVirtualItems();
  const { startIndex = 0, endIndex = 0 } = virtualizer.range ?? {};
  const isReady = virtualizer.range !== null;
  useEffect(() => {
    if (!isReady) return;
    onRange?.(Math.max(0, startIndex - overscan), Math.min(count - 1, endIndex + overscan));
    onVisible?.(startIndex, endIndex);
  }, [isReady, startIndex, endIndex, count]);
  return html`<div class="virtual" ref=${scroller} style=${{ height }} tabindex="0" role="list" aria-label=${label}
    onFocusIn=${(event) => (focused.current = indexOf(event.target))} onFocusOut=${() => (focused.current = null)}>
    <div class="content" role="presentation" style=${{ height: `${virtualizer.getTotalSize()}px` }}>
      ${rows.map(
        ({ index, key, start }) => html`<div
          key=${key} class="virtual-row" role="listitem" aria-setsize=${count} aria-posinset=${index + 1}
          data-index=${index} ref=${virtualizer.measureElement}
          style=${{ transform: `translateY(${start}px)` }}>${row(index)}</div>`,
      )}
    </div>
  </div>`;
}

/** The target of a key that means an end of the list; null where the event is anything else. */
function endAskedFor({ type, key, target, ctrlKey, altKey, metaKey, shiftKey }, scroller, count) {
  if (type !== "keydown" || target !== scroller || count === 0 || ctrlKey || altKey || metaKey || shiftKey) return null;
  if (key === "End") return { index: count - 1, align: "end" };
  return key === "Home" ? { index: 0, align: "start" } : null;
}

/** Corrections go from where the element is: since the last event that told of its place, somebody may have scrolled. */
function scrolled(offset, { adjustments, behavior }, { scrollElement }) {
  if (!scrollElement) return;
  const top = adjustments === undefined ? offset : scrollElement.scrollTop + adjustments;
  scrollElement.scrollTo({ top, behavior });
}

/** Whether a change of this row's height would move what is in the window. */
function isAboveWindow(item, _delta, virtualizer) {
  const isMeasured = virtualizer.itemSizeCache.has(item.key);
  return (isMeasured ? item.end : item.start + 1) <= virtualizer.getScrollOffset();
}

function withRow(indexes, index, count) {
  if (index === null || index >= count || indexes.includes(index)) return indexes;
  return index < indexes[0] ? [index, ...indexes] : [...indexes, index];
}

function indexOf(element) {
  const row = element.closest("[data-index]");
  return row === null ? null : Number(row.dataset.index);
}
return { VirtualList: VirtualList };
})();
const $js_pages_conversation_find = (() => { // js/pages/conversation/find.js
// Looking for words in one conversation: hits in the order of the log, one after the other.
const { html: html, useEffect: useEffect, useRef: useRef, useState: useState } = $js_lib;
const { get: get } = $js_api;
const { useLoaded: useLoaded, useSettled: useSettled } = $js_load;
const { count: count } = $js_format;
const { Button: Button } = $js_ui_parts;
const { placeOf: placeOf } = $js_pages_conversation_place;

const MOST_HITS = 100;
const SETTLE_MS = 300;

/**
 * @param {{id: string, asked: string, at: number|null, onAsk: (words: string) => void, onGo: (seq: number) => void}} props
 *   `asked` as the address has it; `at` the message that is shown
 */
function Find({ id, asked, at, onAsk, onGo }) {
  const [words, setWords] = useState(asked);
  const settled = useSettled(words.trim(), SETTLE_MS);
  const isFirst = useRef(true);
  const found = useLoaded(
    async (signal) => (settled ? get(placeOf(id, "search"), { q: settled, limit: MOST_HITS }, { signal }) : null),
    [id, settled],
  );
  useEffect(() => {
    if (!isFirst.current) onAsk(settled);
    isFirst.current = false;
  }, [settled]);
  const seqs = found.data && settled ? found.data.data.map((hit) => hit.seq).sort((a, b) => a - b) : [];
  const place = seqs.indexOf(at);
  const step = (by) => {
    if (seqs.length === 0) return;
    const next = by > 0 ? seqs.find((seq) => seq > (at ?? -1)) ?? seqs[0] : seqs.findLast((seq) => seq < (at ?? Infinity)) ?? seqs.at(-1);
    onGo(next);
  };
  const submit = (event) => {
    event.preventDefault();
    step(1);
  };
  const keys = (event) => {
    if (event.key !== "Enter" || !event.shiftKey) return;
    event.preventDefault();
    step(-1);
  };
  return html`<form class="row find" role="search" onSubmit=${submit}>
    <input class="input" type="search" aria-label="Find in this conversation" placeholder="Find in this conversation"
      value=${words} onInput=${(event) => setWords(event.target.value)} onKeyDown=${keys} />
    <${Button} small aria-label="Previous hit" disabled=${seqs.length === 0} onClick=${() => step(-1)}>↑<//>
    <${Button} small aria-label="Next hit" disabled=${seqs.length === 0} onClick=${() => step(1)}>↓<//>
    <span class="small soft number" role="status">${told(found, settled, seqs, place)}</span>
  </form>`;
}

function told(found, asked, seqs, place) {
  if (!asked) return "";
  if (found.error) return found.error.message;
  if (found.data === null) return "Searching…";
  if (seqs.length === 0) return found.data.terms.length === 0 ? "Only small words" : "Nothing found";
  const all = `${count(seqs.length)}${seqs.length === MOST_HITS ? " best" : ""}`;
  const part = found.data.complete ? "" : ", not all searched";
  return (place < 0 ? `${all} found` : `${place + 1} of ${all}`) + part;
}
return { Find: Find };
})();
const $js_pages_conversation_log_pages = (() => { // js/pages/conversation/log_pages.js
// The pages of a log that were fetched, by place. Pages that are scrolled past before they come are not waited for.
const PAGE_ROWS = 100;
const KEPT_PAGES = 40;
const CALM_MS = 80;

/**
 * @param {(fromSeq: number, limit: number, signal: AbortSignal) => Promise<{total: number, data: object[]}>} load
 * @param {() => void} onChange
 */
class LogPages {
  constructor(load, onChange) {
    this.load = load;
    this.onChange = onChange;
    this.total = 0;
    this.error = null;
    this.pages = new Map();
    this.stale = new Set();
    this.running = new Map();
    this.wanted = [0, 0];
    this.wantedAt = -Infinity;
    this.timer = null;
  }

  /** A message, or null while it is not there. */
  at(seq) {
    return this.pages.get(Math.floor(seq / PAGE_ROWS))?.[seq % PAGE_ROWS] ?? null;
  }

  /** Which rows are to be there; whoever scrolls fast asks for many and gets those where they stop. */
  want(first, last) {
    this.wanted = [Math.floor(first / PAGE_ROWS), Math.floor(last / PAGE_ROWS)];
    const now = performance.now();
    const isCalm = now - this.wantedAt > CALM_MS;
    this.wantedAt = now;
    clearTimeout(this.timer);
    if (isCalm) this.fetch();
    else this.timer = setTimeout(() => this.fetch(), CALM_MS);
  }

  /** Fetch again what is shown; it stays until the new comes. */
  refresh() {
    this.pages.forEach((_, page) => this.stale.add(page));
    this.running.forEach((leaving) => leaving.abort());
    this.running.clear();
    this.error = null;
    this.fetch();
  }

  close() {
    clearTimeout(this.timer);
    this.running.forEach((leaving) => leaving.abort());
    this.onChange = () => {};
  }

  fetch() {
    const [first, last] = this.wanted;
    this.running.forEach((leaving, page) => (page < first - 1 || page > last + 1) && leaving.abort());
    for (let page = first; page <= last; page += 1) {
      const isThere = this.pages.has(page) && !this.stale.has(page);
      if (!isThere && !this.running.has(page)) this.fetchPage(page);
    }
  }

  async fetchPage(page) {
    const leaving = new AbortController();
    this.running.set(page, leaving);
    let told = null;
    try {
      told = await this.load(page * PAGE_ROWS, PAGE_ROWS, leaving.signal);
      this.error = null;
    } catch (error) {
      if (!leaving.signal.aborted) this.error = error;
    }
    if (this.running.get(page) === leaving) this.running.delete(page);
    if (leaving.signal.aborted) return;
    if (told !== null) this.keep(page, told);
    this.onChange();
  }

  keep(page, told) {
    this.total = told.total;
    this.pages.delete(page);
    this.pages.set(page, told.data);
    this.stale.delete(page);
    for (const old of this.pages.keys()) {
      if (this.pages.size <= KEPT_PAGES) break;
      if (old < this.wanted[0] || old > this.wanted[1]) this.pages.delete(old);
    }
  }
}
return { LogPages: LogPages };
})();
const $js_ui_json = (() => { // js/ui/json.js
// JSON for eyes: indented without reading its values, so that long numbers and doubled names stay as they were sent.
const STEP = "  ";
const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

/** `text` with line breaks, or null if it is no JSON object or array. */
function indented(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  let depth = 0;
  let made = "";
  let before = "";
  const line = () => `\n${STEP.repeat(depth)}`;
  for (const [token] of text.matchAll(TOKEN)) {
    const isOpened = before === "{" || before === "[";
    if (token === "}" || token === "]") {
      depth -= 1;
      made += isOpened ? token : line() + token;
    } else {
      if (isOpened || before === ",") made += line();
      made += token === ":" ? ": " : token;
      if (token === "{" || token === "[") depth += 1;
    }
    before = token;
  }
  return made;
}
return { indented: indented };
})();
const $js_pages_conversation_message = (() => { // js/pages/conversation/message.js
// A message of the log, and the summary that stands in front of those that it covers.
const { Fragment: Fragment, html: html, memo: memo, useMemo: useMemo, useState: useState } = $js_lib;
const { get: get } = $js_api;
const { to: to } = $js_router;
const { count: count } = $js_format;
const { useAction: useAction } = $js_ui_confirm;
const { indented: indented } = $js_ui_json;
const { Markdown: Markdown } = $js_ui_markdown;
const { Badge: Badge, Button: Button, Copy: Copy, Failure: Failure, When: When } = $js_ui_parts;
const { placeOf: placeOf } = $js_pages_conversation_place;

const LONG = { chars: 2_500, lines: 40, name: "" };
/** A summary must not push the message that it stands in front of out of the window. */
const TIGHT = { chars: 500, lines: 6, name: "tight" };
const KINDS = { model: ["", "by a model"], mechanical: ["warn", "without a model"], edited: ["kept", "edited"], part: ["", "a part, for checkpoints"] };

/** What was opened and closed, kept while rows come and go. @returns {[boolean, (isOpen: boolean) => void]} */
function useFold(folds, name, initial) {
  const [isOpen, setOpen] = useState(() => folds.get(name) ?? initial);
  const keep = (value) => {
    folds.set(name, value);
    setOpen(value);
  };
  return [isOpen, keep];
}

function Fold({ folds, name, initial = false, kind = "", summary, children }) {
  const [isOpen, setOpen] = useFold(folds, name, initial);
  return html`<details class="fold ${kind}" open=${isOpen} onToggle=${(event) => setOpen(event.target.open)}>
    <summary>${summary}</summary>
    ${isOpen && children}
  </details>`;
}

/** Text that is cut to a window of its own height until somebody wants all of it. */
function Long({ folds, name, text, limit = LONG, children }) {
  const [isOpen, setOpen] = useFold(folds, name, false);
  const isLong = text.length > limit.chars || text.split("\n", limit.lines + 1).length > limit.lines;
  if (!isLong) return children;
  return html`<div class="long ${limit.name} ${isOpen ? "open" : ""}">${children}</div>
    <${Button} small kind="plain" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>
      ${isOpen ? "Show less" : `Show all ${count(text.length)} characters`}
    <//>`;
}

/**
 * @param {object} props
 * @param {object} props.message  a row of the log
 * @param {string} props.conversation  its id
 * @param {Map<string, boolean>} props.folds
 * @param {string|null} props.callName  of a tool's result: which tool
 * @param {(what: "pin"|"unpin"|"delete"|"summary", message: object) => void} props.onAct
 */
const Message = memo(function Message({ message, conversation, folds, isRaw, isFound, manages, callName, onAct }) {
  const { seq, role } = message;
  const isGone = message.deleted || message.erased;
  return html`<article class="message ${role} ${message.summary_id ? "summarized" : ""} ${isFound ? "found" : ""} ${isGone ? "gone" : ""}"
    aria-label="Message ${seq}, ${role}" aria-current=${isFound ? "true" : undefined}>
    <header>
      <strong class="role">${role}</strong>
      ${callName && html`<code class="small break">${callName}</code>`}
      <span class="small soft number"><a class="seq" href=${to(["conversations", conversation, "log"], { seq })}>#${seq}</a> · turn ${message.turn}</span>
      <span class="small soft"><${When} at=${message.created_at} /></span>
      <span class="small soft number">${count(message.tokens)} tokens</span>
      ${message.model && html`<span class="small soft break">${message.model}</span>`}
      <${Marks} message=${message} onAct=${onAct} />
      <${Actions} message=${message} conversation=${conversation} manages=${manages} onAct=${onAct} />
    </header>
    <${Body} message=${message} conversation=${conversation} folds=${folds} isRaw=${isRaw} isGone=${isGone} />
  </article>`;
});

function Marks({ message, onAct }) {
  const ended = message.finish_reason;
  return html`
    ${message.pinned && html`<${Badge} kind="kept" title="Always shown word for word">pinned<//>`}
    ${message.erased && html`<${Badge} kind="bad">erased<//>`}
    ${message.deleted && !message.erased && html`<${Badge} kind="bad">deleted<//>`}
    ${message.incomplete && html`<${Badge} kind="warn" title="The answer broke off">incomplete<//>`}
    ${ended && !["stop", "tool_calls"].includes(ended) && html`<${Badge} kind="warn">ended: ${ended}<//>`}
    ${message.summary_id &&
    html`<button type="button" class="badge folded as-button" title="Go to the summary that stands for it"
      aria-label=${`Message ${message.seq} is summarized: go to its summary`}
      onClick=${() => onAct("summary", message)}>summarized</button>`}
  `;
}

function Actions({ message, conversation, manages, onAct }) {
  const isGone = message.deleted || message.erased;
  const calls = message.tool_calls.map((call) => `${call.name}(${call.arguments})`);
  return html`<div class="message-actions">
    ${message.role === "assistant" && message.model &&
    html`<a class="button small plain seen-link" aria-label=${`What the model saw for message ${message.seq}`}
      href=${to(["conversations", conversation, "context"], { item: message.id })}>What the model saw</a>`}
    ${!isGone && html`<${Copy} name=${`Copy message ${message.seq}`} text=${[message.text, ...calls].filter(Boolean).join("\n\n")} />`}
    ${manages && !isGone &&
    html`<${Button} small kind="plain" aria-label=${`${message.pinned ? "Unpin" : "Pin"} message ${message.seq}`}
        onClick=${() => onAct(message.pinned ? "unpin" : "pin", message)}>${message.pinned ? "Unpin" : "Pin"}<//>
      <${Button} small kind="plain" aria-label=${`Delete message ${message.seq}…`} onClick=${() => onAct("delete", message)}>Delete…<//>`}
    ${manages && message.deleted && !message.erased &&
    html`<${Button} small kind="plain" aria-label=${`Erase message ${message.seq}…`} onClick=${() => onAct("delete", message)}>Erase…<//>`}
  </div>`;
}

function Body({ message, conversation, folds, isRaw, isGone }) {
  const name = (part) => `${message.id} ${part}`;
  return html`<${Fragment}>
    ${message.reasoning &&
    html`<${Fold} folds=${folds} name=${name("reasoning")} summary="Reasoning">
      <div class="text soft">${message.reasoning}</div>
    <//>`}
    ${message.text &&
    html`<${Long} folds=${folds} name=${name("text")} text=${message.text}><${Text} message=${message} isRaw=${isRaw} /><//>`}
    ${message.refusal && html`<p class="text"><${Badge} kind="warn">refused<//> ${message.refusal}</p>`}
    ${isGone && !message.text && html`<p class="soft"><em>${message.erased ? "Its words were overwritten." : "It is in no list and no prompt any more."}</em></p>`}
    ${message.tool_calls.map(
      (call, place) => html`<${Fold} folds=${folds} name=${name(`call ${place}`)} initial=${call.arguments.length < LONG.chars} kind="call"
        summary=${html`calls <code class="break">${call.name}</code>${call.id && html` <span class="small soft break">${call.id}</span>`}`}>
        <pre class="plain" tabindex="0">${indented(call.arguments) ?? call.arguments}</pre>
      <//>`,
    )}
    ${message.attachments.length > 0 &&
    html`<ul class="attachments small">${message.attachments.map(
      (one) => html`<li><${Badge}>${one.type}<//> <span class="break">${one.detail}</span></li>`,
    )}</ul>`}
    ${message.truncated && html`<${Whole} message=${message} conversation=${conversation} />`}
  <//>`;
}

function Text({ message, isRaw }) {
  const isTool = message.role === "tool" || message.role === "function";
  return useMemo(() => {
    const json = isRaw ? null : indented(message.text);
    if (json !== null) return html`<pre class="plain" tabindex="0">${json}</pre>`;
    if (isRaw || isTool) return html`<div class="text ${isTool ? "mono" : ""}">${message.text}</div>`;
    return html`<${Markdown} text=${message.text} />`;
  }, [message.text, isRaw]);
}

/** A log has the beginning of very long texts; the item has all of it. */
function Whole({ message, conversation }) {
  const [text, setText] = useState(null);
  const loading = useAction(() => get(placeOf(conversation, "items", message.id)), (item) => setText(wholeText(item)));
  if (text !== null) return html`<pre class="plain whole text" tabindex="0">${text}</pre>`;
  return html`<p class="row"><span class="small soft">Only its first 20,000 characters are shown.</span>
    <${Button} small onClick=${loading.run} disabled=${loading.busy}>Load all of it<//></p>
    <${Failure} error=${loading.error} />`;
}

function wholeText(item) {
  const parts = Array.isArray(item.content) ? item.content.map((part) => part.text).filter(Boolean) : [];
  return parts.join("\n\n") || item.arguments || item.input || (typeof item.output === "string" ? item.output : JSON.stringify(item, null, 2));
}

/** A summary where it stands in for messages: `summary` as the API tells it. */
const Band = memo(function Band({ summary, conversation, folds, isRaw }) {
  const messages = summary.to_seq - summary.from_seq;
  const head = html`<strong>Summary of messages ${summary.from_seq}–${summary.to_seq - 1}</strong>
    <${SummaryFacts} summary=${summary} />`;
  return html`<aside class="band" aria-label="Summary of messages ${summary.from_seq} to ${summary.to_seq - 1}">
    <${Fold} folds=${folds} name=${summary.id} initial=${true} summary=${head}>
      <${Long} folds=${folds} name=${`${summary.id} text`} text=${summary.text} limit=${TIGHT}>
        ${isRaw ? html`<div class="text">${summary.text}</div>` : html`<${Markdown} text=${summary.text} />`}
      <//>
      <p class="small soft">Stands for the ${count(messages)} messages below it, turns through ${summary.through_turn}, whenever
        they have no room. <a href=${to(["conversations", conversation, "summaries"], { summary: summary.id })}>Revise it</a></p>
    <//>
  </aside>`;
});

function SummaryFacts({ summary }) {
  const [kind, words] = KINDS[summary.kind] ?? ["", summary.kind];
  return html`<span class="facts small soft">
    <${Badge} kind=${kind}>${words}<//>
    ${summary.model && html`<span class="break">${summary.model}</span>`}
    <span class="number">${count(summary.tokens)} tokens</span>
    <span class="number">revision ${summary.revision}</span>
  </span>`;
}
return { Message: Message, Band: Band, SummaryFacts: SummaryFacts };
})();
const $js_pages_conversation_summary_list = (() => { // js/pages/conversation/summary_list.js
// The summaries of a conversation, all pages of them.
const { get: get } = $js_api;
const { placeOf: placeOf } = $js_pages_conversation_place;

const PAGE = 100;
const MOST_PAGES = 20;

/** @param {{all?: boolean, signal?: AbortSignal}} options  `all`: also those that no view is made of any more */
async function allSummaries(id, { all = false, signal } = {}) {
  const found = [];
  let after = null;
  for (let page = 0; page < MOST_PAGES; page += 1) {
    const told = await get(placeOf(id, "summaries"), { limit: PAGE, after, all: all || null }, { signal });
    found.push(...told.data);
    if (!told.has_more) break;
    after = told.last_id;
  }
  return found;
}
return { allSummaries: allSummaries };
})();
const $js_pages_conversation_log = (() => { // js/pages/conversation/log.js
// All that was said, however long: rows come as they are looked at, and summaries stand where they stand in.
const { html: html, useCallback: useCallback, useEffect: useEffect, useMemo: useMemo, useReducer: useReducer, useRef: useRef, useState: useState } = $js_lib;
const { get: get, send: send } = $js_api;
const { useLoaded: useLoaded } = $js_load;
const { go: go } = $js_router;
const { count: count } = $js_format;
const { Confirm: Confirm, useAction: useAction } = $js_ui_confirm;
const { marked: marked } = $js_ui_marks;
const { Button: Button, Empty: Empty, Failure: Failure } = $js_ui_parts;
const { VirtualList: VirtualList } = $js_ui_virtual;
const { Find: Find } = $js_pages_conversation_find;
const { LogPages: LogPages } = $js_pages_conversation_log_pages;
const { Band: Band, Message: Message } = $js_pages_conversation_message;
const { mayManage: mayManage, placeOf: placeOf } = $js_pages_conversation_place;
const { allSummaries: allSummaries } = $js_pages_conversation_summary_list;

const ROW_PX = 132;
const LOOK_BACK = 40;
const HEIGHT = "max(24rem, calc(100dvh - 8.5rem))";

function Log({ id, record, route, session, round, onChange }) {
  const pages = useLogPages(id, record, round);
  const summaries = useLoaded((signal) => allSummaries(id, { signal }), [id, record.summaries, record.updated_at, round]);
  const [isRaw, setRaw] = useState(false);
  const [asking, setAsking] = useState(null);
  const folds = useRef(new Map()).current;
  const box = useRef(null);
  const { target, at, jump } = useTarget(route, pages.total);
  const pinning = useAction((method, message) => send(method, placeOf(id, "items", message.id, "pin")), onChange);
  const byStart = useMemo(() => new Map((summaries.data ?? []).map((one) => [one.from_seq, one])), [summaries.data]);
  const words = route.query.get("q") ?? "";
  useEffect(() => marked(box.current, words));

  const act = useCallback((what, message) => {
    if (what === "pin") pinning.run("POST", message);
    else if (what === "unpin") pinning.run("DELETE", message);
    else if (what === "delete") setAsking(message);
    else jump(summaryOver(byStart, message)?.from_seq ?? message.seq);
  }, [byStart, jump]);
  const row = (seq) => {
    const message = pages.at(seq);
    const summary = byStart.get(seq);
    return html`
      ${summary && html`<${Band} summary=${summary} conversation=${id} folds=${folds} isRaw=${isRaw} />`}
      ${message === null
        ? html`<div class="message waiting" aria-busy="true"><span class="small soft number">#${seq}</span></div>`
        : html`<${Message} message=${message} conversation=${id} folds=${folds} isRaw=${isRaw} isFound=${seq === at}
            manages=${mayManage(session)} callName=${callNameOf(pages, message)} onAct=${act} />`}
    `;
  };
  if (pages.total === 0) {
    return html`<${Empty}>Nothing was said yet. What is said under this conversation’s id stands here.<//>`;
  }
  return html`<div class="log" ref=${box}>
    <div class="row log-tools">
      <${Find} id=${id} asked=${words} at=${at} onGo=${jump}
        onAsk=${(q) => go(["conversations", route.parts[1], "log"], { q, seq: at }, { replace: true })} />
      <${Jump} total=${pages.total} onJump=${jump} />
      <label class="row small"><input type="checkbox" checked=${isRaw} onChange=${(event) => setRaw(event.target.checked)} /> Plain text</label>
    </div>
    <p class="visually-hidden" role="status">${target ? `Message ${target.index} of ${count(pages.total)}` : ""}</p>
    <${Failure} error=${pinning.error ?? pages.error} retry=${pages.error ? pages.refresh : undefined} />
    <${Failure} error=${summaries.error} retry=${summaries.reload} />
    <${VirtualList} count=${pages.total} row=${row} estimate=${ROW_PX} height=${HEIGHT} target=${target}
      label="Messages" onRange=${pages.want} onVisible=${() => marked(box.current, words)} />
    ${asking && html`<${DeleteMessage} id=${id} message=${asking} onClose=${() => setAsking(null)} onDone=${onChange} />`}
  </div>`;
}

function useLogPages(id, record, round) {
  const [, draw] = useReducer((before) => before + 1, 0);
  const held = useRef(null);
  if (held.current?.id !== id) {
    held.current?.pages.close();
    const load = (from_seq, limit, signal) => get(placeOf(id, "log"), { from_seq, limit }, { signal });
    const pages = new LogPages(load, draw);
    held.current = { id, pages, want: (...range) => pages.want(...range), refresh: () => pages.refresh() };
  }
  const { pages, want, refresh } = held.current;
  const isFirst = useRef(true);
  useEffect(() => {
    if (isFirst.current) isFirst.current = false;
    else pages.refresh();
  }, [round, record.updated_at, record.messages]);
  useEffect(() => () => held.current.pages.close(), []);
  const total = Math.max(pages.total, record.messages);
  return { total, at: (seq) => pages.at(seq), error: pages.error, want, refresh };
}

/** Where the address points: `?seq=`. Going to the same place twice goes there twice. */
function useTarget(route, total) {
  const asked = route.query.get("seq");
  const at = asked === null || !/^\d+$/.test(asked) ? null : Math.min(Number(asked), Math.max(0, total - 1));
  const [target, setTarget] = useState(null);
  const focus = useRef(false);
  const newest = useRef(null);
  newest.current = { at, route };
  useEffect(() => {
    if (at !== null) setTarget({ index: at, focus: focus.current });
    focus.current = false;
  }, [at]);
  const jump = useCallback((seq, { focus: wantsFocus = false } = {}) => {
    const { at: before, route: now } = newest.current;
    focus.current = wantsFocus;
    if (before === seq) setTarget({ index: seq, focus: wantsFocus });
    else go(now.parts, { q: now.query.get("q"), seq }, { replace: true });
  }, []);
  return { target, at, jump };
}

function Jump({ total, onJump }) {
  const [seq, setSeq] = useState("");
  const submit = (event) => {
    event.preventDefault();
    if (seq !== "") onJump(Math.max(0, Math.min(total - 1, Math.floor(Number(seq)))), { focus: true });
  };
  return html`<form class="row jump" onSubmit=${submit}>
    <${Button} small onClick=${() => onJump(0, { focus: true })}>First<//>
    <${Button} small onClick=${() => onJump(total - 1, { focus: true })}>Last<//>
    <input class="input number" type="number" min="0" max=${total - 1} aria-label="Number of a message" placeholder="#"
      value=${seq} onInput=${(event) => setSeq(event.target.value)} />
    <${Button} small type="submit">Go<//>
    <span class="wide small soft number">of ${count(total)}</span>
  </form>`;
}

function DeleteMessage({ id, message, onClose, onDone }) {
  const [erase, setErase] = useState(message.deleted);
  const remove = () => send("DELETE", placeOf(id, "items", message.id), undefined, { query: { erase: erase || null } });
  return html`<${Confirm} title=${`Delete message ${message.seq}?`} action=${erase ? "Erase for good" : "Delete"} onClose=${onClose}
    onConfirm=${async () => { await remove(); onClose(); onDone(); }}>
    <blockquote class="text excerpt">${message.text.slice(0, 300) || "(no text)"}</blockquote>
    <fieldset class="stack choices">
      <legend class="visually-hidden">How</legend>
      ${!message.deleted && html`<label class="row"><input type="radio" name="how" checked=${!erase} onChange=${() => setErase(false)} />
        <span><strong>Take it out</strong> of every list and every prompt.</span></label>`}
      <label class="row"><input type="radio" name="how" checked=${erase} onChange=${() => setErase(true)} />
        <span><strong>Erase it</strong>: its words are also overwritten in the database. This cannot be taken back.</span></label>
    </fieldset>
    <p class="small soft">It goes from every branch that shares it. Summaries that covered it are made again without it.
      ${message.tool_calls.length > 0 && message.text && " Its tool calls are items of their own, and stay."}</p>
  <//>`;
}

/** Of a tool's result: what was called. */
function callNameOf(pages, message) {
  if (message.role !== "tool" || !message.tool_call_id) return message.name;
  for (let seq = message.seq - 1; seq >= Math.max(0, message.seq - LOOK_BACK); seq -= 1) {
    const call = pages.at(seq)?.tool_calls.find((one) => one.id === message.tool_call_id);
    if (call) return call.name;
  }
  return message.name;
}

function summaryOver(byStart, message) {
  return [...byStart.values()].find((one) => one.id === message.summary_id);
}
return { Log: Log };
})();
const $js_pages_conversation_seen_view = (() => { // js/pages/conversation/seen_view.js
// A view as the gateway tells it, taken apart: its rows of the log, and what was sent in the order it was sent. Pure but
// for the loading.
const { get: get } = $js_api;
const { DISPOSITIONS: DISPOSITIONS } = $js_ui_parts;

const PAGE = 1000;

/** Where a view is: of an answer, or of what would be sent now. */
function pathOf(id, item) {
  const conversation = `v1/conversations/${encodeURIComponent(id)}`;
  return item ? `${conversation}/items/${encodeURIComponent(item)}/context` : `${conversation}/context`;
}

/** The view with what was sent and the newest rows. */
function loadView(id, item, asked, signal) {
  return get(pathOf(id, item), { ...asked, "include[]": "sent", limit: PAGE, order: "desc" }, { signal });
}

/** Further rows, older and older, a page at a time. @yields {object[]} */
async function* olderRows(id, item, asked, page, signal) {
  let last = page;
  while (last.has_more && last.data.length) {
    const { messages } = await get(pathOf(id, item), { ...asked, limit: PAGE, order: "desc", after: last.last_id }, { signal });
    last = messages;
    yield messages.data;
  }
}

/** How many rows have each disposition, in the order of the legend. @returns {[string, number][]} */
function counted(rows) {
  const counts = new Map(Object.keys(DISPOSITIONS).map((kind) => [kind, 0]));
  for (const row of rows) if (row) counts.set(row.disposition, (counts.get(row.disposition) ?? 0) + 1);
  return [...counts].filter(([, number]) => number > 0);
}

/**
 * What was sent, as entries that know what they stand for.
 *
 * @typedef {object} Entry
 * @property {"instructions"|"introduction"|"summary"|"note"|"user_text"|"quotation"|"message"} kind
 * @property {string} role
 * @property {object} message  as it was sent
 * @property {string} text
 * @property {{from_seq: number, to_seq: number}[]} ranges  messages of the log that it stands for
 * @property {object} [summary]
 * @property {object} [row]  of the log
 *
 * @param {object} view  with `sent`
 * @param {object[]} rows  by seq
 * @returns {Entry[]}
 */
function entriesOf(view, rows) {
  const summaries = new Map(view.summaries.map((summary) => [summary.id, summary]));
  return (view.sent ?? []).flatMap((message, index) => {
    const place = view.sent_places[index];
    const said = { kind: place.kind, role: message.role, message, text: textOf(message), ranges: rangesOf(place) };
    if (place.kind === "summary") {
      return place.parts.map((part) => ({
        ...said, kind: part.kind, text: unfenced(part), ranges: rangesOf(part), summary: summaries.get(part.summary_id),
      }));
    }
    return place.kind === "message" ? { ...said, row: rows[place.from_seq] } : said;
  });
}

function rangesOf({ from_seq, to_seq, parts = [] }) {
  return from_seq === null ? parts.flatMap(rangesOf) : [{ from_seq, to_seq }];
}

/** A summary without the lines that fence it in. */
function unfenced({ kind, text }) {
  const words = text.trim();
  return kind === "summary" ? words.split("\n").slice(1, -1).join("\n") : words;
}

/** A message's words; parts that are no text are named. */
function textOf(message) {
  const { content } = message ?? {};
  const text = Array.isArray(content) ? content.map(partOf).join("\n") : (content ?? "");
  return [text, message?.refusal, ...(message?.tool_calls ?? []).map(callOf)].filter(Boolean).join("\n");
}

function partOf(part) {
  return typeof part === "string" ? part : (part?.text ?? part?.refusal ?? `[${part?.type ?? "part"}]`);
}

function callOf(call) {
  const made = call?.function ?? call?.custom ?? {};
  return `calls ${made.name ?? "?"}(${made.arguments ?? made.input ?? ""})`;
}
return { pathOf: pathOf, loadView: loadView, olderRows: olderRows, counted: counted, entriesOf: entriesOf, textOf: textOf };
})();
const $js_pages_conversation_seen_drawing = (() => { // js/pages/conversation/seen_drawing.js
// The log from its first message to its last, and below it what was sent for each stretch: a drawing, and the same as a table.
const { html: html, useMemo: useMemo, useState: useState } = $js_lib;
const { count: count, countOf: countOf } = $js_format;
const { to: to } = $js_router;
const { entriesOf: entriesOf } = $js_pages_conversation_seen_view;

/**
 * @param {object} props
 * @param {string} props.id  of the conversation
 * @param {object} props.view  with `sent`
 * @param {object} [props.turn]  of the answer
 * @param {object[]} props.turns
 */
function SeenDrawing({ id, view, turn, turns }) {
  const end = (view.messages.data[0]?.seq ?? -1) + 1;
  const lanes = useMemo(() => lanesOf(id, view, turn, end), [id, view, turn, end]);
  const [told, setTold] = useState("");
  return html`<figure class="drawn" aria-label="What was sent for which messages">
    <p>${inWords(view, end, sinceOf(turn, turns))}</p>
    <div class="drawn-lanes">${lanes.map((lane) => html`<div class="drawn-lane" key=${lane.name}>
      <span class="small"><strong>${lane.name}</strong> <span class="soft">${lane.note}</span></span>
      <div class="drawn-track">${lane.blocks.map((block) => html`<a key=${block.from_seq} class="drawn-block ${lane.family}" href=${block.href} aria-label=${block.words}
        tabindex=${lane.isFocusable ? undefined : -1} style=${{ left: `${(100 * block.from_seq) / end}%`, width: `${(100 * (block.to_seq - block.from_seq)) / end}%` }}
        onMouseEnter=${() => setTold(block.words)} onFocus=${() => setTold(block.words)}></a>`)}</div>
    </div>`)}
      <div class="drawn-lane small soft" aria-hidden="true"><span></span><span class="drawn-scale"><span>#0</span><span>the log</span><span>#${count(end - 1)}</span></span></div>
    </div>
    <figcaption class="small soft" aria-live="polite">${told || "Point at a block, or move to it with Tab, to see which messages it stands for."}</figcaption>
    <details class="small"><summary>As a table</summary><div class="scroll-x" tabindex="0" role="region" aria-label="Table: what was sent for which messages"><table class="data">
      <thead><tr><th scope="col">Sent</th><th scope="col">For</th></tr></thead>
      <tbody>${lanes.flatMap((lane) => lane.blocks.map((block) => html`<tr key=${`${lane.name} ${block.from_seq}`}><td>${lane.name}</td><td><a href=${block.href}>${block.words}</a></td></tr>`))}</tbody>
    </table></div></details>
  </figure>`;
}

const nameRange = ({ from_seq, to_seq }) => (to_seq - from_seq > 1 ? `messages #${count(from_seq)} to #${count(to_seq - 1)}` : `message #${count(from_seq)}`);
const lengthOf = (ranges) => ranges.reduce((sum, { from_seq, to_seq }) => sum + to_seq - from_seq, 0);

/** The turn since which each view has had these summaries; null while it is not known. */
function sinceOf(turn, turns) {
  const isAlike = (other) => other.boundary_seq === turn.boundary_seq && other.summaries === turn.summaries;
  return turn ? (turns.find(isAlike)?.turn ?? null) : null;
}

function inWords(view, end, since) {
  if (!view.summaries.length) return view.reason ?? "Shortened without a summary.";
  const stands = `${countOf(view.summaries.length, "summary").replace("summarys", "summaries")} ${view.summaries.length > 1 ? "stand" : "stands"} for ${count(lengthOf(view.summaries))} of ${countOf(end, "message")}`;
  const whole = view.would_have_been_tokens;
  const first = since === null ? `${stands}.` : `Since turn ${count(since)}, ${stands}.`;
  if (!whole) return first;
  return `${first} The whole history has ${count(whole)} tokens, the compaction threshold is ${count(view.compacts_above)}${whole > view.compacts_above ? "." : ": what was summarized comes back only when there is more room."}`;
}

/** What was sent, by its kind: each with its blocks from the oldest to the newest. */
function lanesOf(id, view, turn, end) {
  const entries = entriesOf(view, []);
  const rangesOf = (kind) => joined(entries.filter((entry) => entry.kind === kind).flatMap((entry) => entry.ranges));
  const log = (range) => to(["conversations", id, "log"], { seq: range.from_seq });
  const plain = (ranges, words) => ranges.map((range) => ({ ...range, href: log(range), words: `${words} ${nameRange(range)}` }));
  const summaries = view.summaries.map((summary) => ({
    from_seq: summary.from_seq, to_seq: summary.to_seq, href: to(["conversations", id, "summaries"], { summary: summary.id }),
    words: `Summary ${summary.id} (${countOf(summary.tokens, "token")}) stands for ${nameRange(summary)}${summary.replaced_tokens ? ` (${countOf(summary.replaced_tokens, "token")})` : ""}`,
  }));
  const userText = rangesOf("user_text");
  const quotations = rangesOf("quotation");
  const messages = rangesOf("message");
  const gaps = between(joined([...view.summaries, ...userText, ...quotations, ...messages]), end);
  const tokens = (name) => (turn?.parts?.[name] ? ` · ${countOf(turn.parts[name], "token")}` : "");
  return [
    { name: "Summaries", family: "folded", isFocusable: true, blocks: summaries, note: `${count(summaries.length)}${tokens("summaries")}` },
    { name: "Kept user text", family: "kept", blocks: plain(userText, "What the user said in"), note: `of ${countOf(lengthOf(userText), "message")}${tokens("user_text")}` },
    { name: "Quotations", family: "trimmed", blocks: plain(quotations, "Quoted from"), note: `from ${countOf(lengthOf(quotations), "message")}${tokens("quotations")}` },
    { name: "Messages", family: "verbatim", isFocusable: true, blocks: plain(messages, "Sent as"), note: `${count(lengthOf(messages))}${tokens("verbatim")}` },
    { name: "Left out", family: "gone", isFocusable: true, blocks: plain(gaps, "Nothing stands for"), note: countOf(lengthOf(gaps), "message") },
  ].filter((lane) => lane.blocks.length);
}

/** Ranges in order, those that touch as one. */
function joined(ranges) {
  const found = [];
  for (const { from_seq, to_seq } of [...ranges].sort((one, other) => one.from_seq - other.from_seq)) {
    const last = found.at(-1);
    if (last && from_seq <= last.to_seq) last.to_seq = Math.max(last.to_seq, to_seq);
    else found.push({ from_seq, to_seq });
  }
  return found;
}

/** What lies between joined ranges, from 0 to `end`. */
function between(ranges, end) {
  const edges = [0, ...ranges.flatMap(({ from_seq, to_seq }) => [from_seq, to_seq]), end];
  return edges.flatMap((from_seq, at) => (at % 2 === 0 && edges[at + 1] > from_seq ? [{ from_seq, to_seq: edges[at + 1] }] : []));
}
return { SeenDrawing: SeenDrawing };
})();
const $js_ui_chart = (() => { // js/ui/chart.js
// Lines or stacked bars over something: uPlot, loaded where a chart is shown, and always the same numbers as a table.
const { html: html, useEffect: useEffect, useMemo: useMemo, useRef: useRef, useState: useState } = $js_lib;
const { count: count } = $js_format;
const { Button: Button, Loading: Loading } = $js_ui_parts;

const AXIS_FONT = "12px system-ui, sans-serif";
const TABLE_ROWS = 200;
const WHOLE_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000];
const PIXELS_PER_MARK = 6;
/** Room for a time of day with seconds. */
const PIXELS_PER_TIME = 72;
const HALF_DAY_SECONDS = 43_200;
const days = new Intl.DateTimeFormat("en", { day: "numeric", month: "short" });
const hours = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const seconds = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

/** Times of day, told apart where several are in the same minute; days where ticks are days apart. */
function clockTimes(ticks) {
  const format = ticks.length > 1 && ticks[1] - ticks[0] >= HALF_DAY_SECONDS ? days : ticks.length > 1 && ticks[1] - ticks[0] < 60 ? seconds : hours;
  return ticks.map((unixSeconds) => format.format(new Date(unixSeconds * 1000)));
}

/**
 * @typedef {object} Line
 * @property {string} label
 * @property {(number|null)[]} values  one per x
 * @property {string} [color]  name of a CSS variable, such as `--chart-1`
 * @property {boolean} [dashed]
 * @property {boolean} [area]  filled down to zero
 * @property {boolean} [filled]  the same, without anything to be seen through it: of several lines the first is the highest, so that they stack
 * @property {boolean} [stepped]
 * @property {boolean} [bars]  a bar at each x; of several lines the first is the highest and drawn first, so that they stack
 * @property {(number|null)[]} [told]  what the read-out and the table say, in place of the values
 * @property {(value: number|null) => string} [format]
 */

/**
 * A chart with a read-out, which follows the pointer and the arrow keys, and a table of what it shows.
 *
 * @param {object} props
 * @param {string} props.label  what the chart shows, for those who do not see it
 * @param {number[]} props.x  ascending; Unix seconds where `time` is set
 * @param {string} props.xLabel
 * @param {Line[]} props.lines
 * @param {boolean} [props.time]
 * @param {(value: number) => string} [props.formatX]
 * @param {(value: number) => string} [props.formatY]  of the axis
 * @param {(value: number) => string} [props.formatTick]  of the axis below, without `time`
 * @param {number} [props.least]  the axis reaches at least this far
 * @param {{index: number, color: string}[]} [props.marks]  upright lines
 * @param {{label: string, value: (index: number) => any}[]} [props.columns]  further columns of the table
 * @param {(index: number) => any} [props.more]  what the read-out says beside the lines
 * @param {(index: number) => void} [props.onPick]  a click or Enter
 * @param {string} [props.pickHint]  what that does
 * @param {number} [props.height]  in pixels
 */
function Chart(props) {
  const { label, x, lines, formatX = String, more, height = 280, pickHint } = props;
  const [index, setIndex] = useState(null);
  const [isTable, setTable] = useState(false);
  const shown = index !== null && index < x.length ? index : null;
  const table = useMemo(() => isTable && html`<${Table} ...${props} />`, [isTable, x, lines]);
  return html`<figure class="chart">
    <div class="chart-head">
      <ul class="chart-key">
        ${lines.map((line) => html`<li key=${line.label}><span class="swatch ${line.dashed ? "dashed" : ""} ${line.filled ? "filled" : ""}"
          style=${{ borderColor: `var(${line.color})` }}></span>${line.label}${shown !== null && html`: <strong
          class="number">${(line.format ?? count)((line.told ?? line.values)[shown])}</strong>`}</li>`)}
      </ul>
      <${Button} small aria-expanded=${isTable} aria-label=${`${isTable ? "Hide table" : "Show as table"}: ${label}`} onClick=${() => setTable(!isTable)}>${isTable ? "Hide table" : "Show as table"}<//>
    </div>
    <${Plot} ...${props} index=${shown} onIndex=${setIndex} height=${height} />
    <figcaption class="small soft chart-readout" aria-live="polite">
      ${shown === null
        ? html`${label}.${pickHint && ` ${pickHint}`}`
        : html`<strong>${formatX(x[shown])}</strong><span class="visually-hidden">${lines.map((line) => `, ${line.label} ${(line.format ?? count)((line.told ?? line.values)[shown])}`)}</span>${more && html` · ${more(shown)}`}`}
    </figcaption>
    ${table}
  </figure>`;
}

/** The drawing itself. */
function Plot({ label, x, lines, time, formatY, formatTick, least, marks, onPick, index, onIndex, height }) {
  const place = useRef(null);
  const plot = useRef(null);
  const newest = useRef(null);
  newest.current = { marks: marks ?? [], onPick, onIndex, formatY, formatTick, least: least ?? 1, x };
  const uPlot = useLibrary();
  const colors = useColors();
  const data = useMemo(() => [x, ...lines.map((line) => line.values)], [x, lines]);
  const shape = lines.map((line) => [line.label, line.color, line.dashed, line.area, line.filled, line.stepped, line.bars].join()).join("|");

  useEffect(() => {
    if (!uPlot) return undefined;
    const element = place.current;
    const made = new uPlot(options(uPlot, { lines, time, height, width: widthOf(element), colors, newest }), data, element);
    made.over.addEventListener("click", () => pick(made, newest.current));
    plot.current = made;
    const sized = new ResizeObserver(() => made.setSize({ width: widthOf(element), height }));
    sized.observe(element);
    return () => {
      sized.disconnect();
      plot.current = null;
      made.destroy();
    };
  }, [uPlot, shape, height, colors, time]);

  useEffect(() => {
    if (plot.current && plot.current.data !== data) plot.current.setData(data);
  }, [data, marks]);

  const move = (to) => {
    const next = Math.max(0, Math.min(x.length - 1, to));
    onIndex(next);
    const made = plot.current;
    made?.setCursor({ left: made.valToPos(x[next], "x"), top: made.over.clientHeight / 2 }, false);
  };
  const onKey = (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
    if (event.key in steps && x.length) move((index ?? (steps[event.key] > 0 ? -1 : x.length)) + steps[event.key]);
    else if (event.key === "Enter" && index !== null && onPick) onPick(index);
    else if (event.key === "Escape") onIndex(null);
    else return;
    event.preventDefault();
  };
  return html`<div class="chart-place" ref=${place} tabindex="0" role="group" aria-roledescription="chart"
    aria-label="${label}. Arrow keys move along it." style=${{ height: `${height}px` }} onKeyDown=${onKey}>
    ${!uPlot && html`<${Loading}>Loading the chart…<//>`}
  </div>`;
}

function options(uPlot, { lines, time, height, width, colors, newest }) {
  const axis = { stroke: colors["--ink-soft"], font: AXIS_FONT, grid: { stroke: colors["--chart-grid"], width: 1 }, ticks: { show: false } };
  return {
    width,
    height,
    legend: { show: false },
    padding: [10, 24, 0, 0],
    cursor: {
      y: false,
      drag: { x: false, y: false },
      points: { size: 7 },
    },
    scales: {
      x: { time: Boolean(time), ...(lines.some((line) => line.bars) && { range: (_, low, high) => [(low ?? 0) - 0.6, (high ?? 0) + 0.6] }) },
      y: { range: (_, low, high) => [0, Math.max(newest.current.least, high ?? 0) * 1.06] },
    },
    axes: [
      { ...axis, size: 32, ...(time ? { space: PIXELS_PER_TIME, values: (_, ticks) => clockTimes(ticks) } : { incrs: WHOLE_STEPS, values: (_, ticks) => ticks.map(newest.current.formatTick ?? count) }) },
      { ...axis, size: 56, values: (_, ticks) => ticks.map((value) => (newest.current.formatY ?? count)(value)) },
    ],
    series: [{}, ...lines.map((line) => series(uPlot, line, colors))],
    hooks: {
      setCursor: [(made) => newest.current.onIndex(made.cursor.idx ?? null)],
      draw: [(made) => drawMarks(made, newest.current, colors)],
    },
  };
}

function series(uPlot, line, colors) {
  const color = colors[line.color];
  return {
    label: line.label,
    stroke: color,
    width: line.filled ? 1 : 2,
    dash: line.dashed ? [6, 5] : undefined,
    fill: line.bars || line.filled ? color : line.area ? `${color}22` : undefined,
    paths: line.bars ? uPlot.paths.bars({ size: [0.7, 48] }) : line.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
    points: { show: false, size: 5, fill: color, filter: (made, at) => lonePoints(made.data[at]) },
    spanGaps: false,
  };
}

/** Where a value has no neighbour: no line goes there, so it is drawn as a point. */
const lonePoints = (values) => [...values.keys()].filter((at) => values[at] != null && values[at - 1] == null && values[at + 1] == null);

function pick(made, { onPick }) {
  if (onPick && made.cursor.idx !== null && made.cursor.idx !== undefined) onPick(made.cursor.idx);
}

function drawMarks(made, { marks, x }, colors) {
  const { ctx, bbox } = made;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  const areDense = marks.length * PIXELS_PER_MARK * devicePixelRatio > bbox.width;
  for (const mark of marks) {
    const left = Math.round(made.valToPos(x[mark.index], "x", true));
    ctx.strokeStyle = colors[mark.color];
    ctx.fillStyle = colors[mark.color];
    ctx.globalAlpha = 0.6;
    ctx.beginPath();
    ctx.moveTo(left, bbox.top);
    ctx.lineTo(left, bbox.top + (areDense ? 0 : bbox.height));
    ctx.stroke();
    ctx.globalAlpha = 1;
    ctx.beginPath();
    ctx.arc(left, bbox.top, 3 * devicePixelRatio, 0, 2 * Math.PI);
    ctx.fill();
  }
  ctx.restore();
}

function Table({ label, x, xLabel, lines, columns = [], formatX = String }) {
  const [page, setPage] = useState(0);
  const pages = Math.max(1, Math.ceil(x.length / TABLE_ROWS));
  const at = Math.min(page, pages - 1);
  const rows = Array.from({ length: Math.min(TABLE_ROWS, x.length - at * TABLE_ROWS) }, (_, row) => at * TABLE_ROWS + row);
  return html`<div class="chart-table">
    <div class="scroll-x" tabindex="0" role="region" aria-label="Table: ${label}">
      <table class="data">
        <thead><tr>
          <th scope="col">${xLabel}</th>
          ${lines.map((line) => html`<th scope="col" class="number">${line.label}</th>`)}
          ${columns.map((column) => html`<th scope="col">${column.label}</th>`)}
        </tr></thead>
        <tbody>${rows.map((row) => html`<tr key=${row}>
          <th scope="row">${formatX(x[row])}</th>
          ${lines.map((line) => html`<td class="number">${(line.format ?? count)((line.told ?? line.values)[row])}</td>`)}
          ${columns.map((column) => html`<td>${column.value(row)}</td>`)}
        </tr>`)}</tbody>
      </table>
    </div>
    ${pages > 1 && html`<div class="row"><${Button} small disabled=${at === 0} onClick=${() => setPage(at - 1)}>Earlier rows<//>
      <span class="small" aria-live="polite">Rows ${count(at * TABLE_ROWS + 1)} to ${count(at * TABLE_ROWS + rows.length)} of ${count(x.length)}</span>
      <${Button} small disabled=${at === pages - 1} onClick=${() => setPage(at + 1)}>Later rows<//></div>`}
  </div>`;
}

let library = null;

/** uPlot, fetched when the first chart is shown. */
function useLibrary() {
  const [loaded, setLoaded] = useState(() => library);
  useEffect(() => {
    let left = false;
    import("../vendor/uplot.js").then((module) => {
      library = { uPlot: module.default };
      if (!left) setLoaded(library);
    });
    return () => { left = true; };
  }, []);
  return loaded?.uPlot ?? null;
}

const NAMES = ["--ink", "--ink-soft", "--chart-grid", "--chart-1", "--chart-2", "--chart-3", "--chart-4", "--chart-5", "--gone"];

/** The theme's colours, read anew when the theme changes. */
function useColors() {
  const [colors, setColors] = useState(readColors);
  useEffect(() => {
    const follow = () => setColors(readColors());
    const system = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("themechange", follow);
    system.addEventListener("change", follow);
    return () => {
      removeEventListener("themechange", follow);
      system.removeEventListener("change", follow);
    };
  }, []);
  return colors;
}

function readColors() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(name).trim()]));
}

const widthOf = (element) => Math.max(200, element.clientWidth);
return { Chart: Chart };
})();
const $js_ui_numbers = (() => { // js/ui/numbers.js
// A row of numbers that tell how things stand.
const { html: html } = $js_lib;

/**
 * @param {object} props
 * @param {string} props.label  of the whole row
 * @param {{label: string, value: any, note?: any, title?: string, kind?: string}[]} props.of
 */
function Numbers({ label, of }) {
  return html`<dl class="numbers" aria-label=${label}>
    ${of.map(
      (one) => html`<div class="panel" key=${one.label}>
        <dt class="small soft">${one.label}</dt>
        <dd class="value number ${one.kind ?? ""}" title=${one.title}>${one.value}</dd>
        ${one.note && html`<dd class="small soft">${one.note}</dd>`}
      </div>`,
    )}
  </dl>`;
}
return { Numbers: Numbers };
})();
const $js_pages_conversation_tokens = (() => { // js/pages/conversation/tokens.js
// The sawtooth: tokens sent per turn, against what the whole log would have cost.
const { html: html, useMemo: useMemo, useState: useState } = $js_lib;
const { get: get } = $js_api;
const { count: count, duration: duration, moment: moment, percent: percent, short: short } = $js_format;
const { useLoaded: useLoaded } = $js_load;
const { go: go } = $js_router;
const { Chart: Chart } = $js_ui_chart;
const { Button: Button, Empty: Empty, Loaded: Loaded, Status: Status } = $js_ui_parts;
const { Numbers: Numbers } = $js_ui_numbers;

const PAGE = 1000;
const STRETCHES = [50, 200, 1000];
/** A log so many windows long would press the sawtooth flat. */
const TALL = 6;

/** @param {{id: string, round?: number}} props  `id` of the conversation; `round` changes when it did */
function Tokens({ id, round = 0 }) {
  const turns = useLoaded((signal) => allTurns(id, signal), [id, round]);
  return html`<${Loaded} from=${turns} waiting="Reading the turns…">${(all) =>
    all.length ? html`<${Sawtooth} id=${id} turns=${all} reload=${turns.reload} />` : html`<${Empty}>No answer of this conversation came through the gateway yet.<//>`}<//>`;
}

/** Every turn that a model was asked in, oldest first. */
async function allTurns(id, signal) {
  const all = [];
  for (let after = null; ; ) {
    const page = await get(`v1/conversations/${encodeURIComponent(id)}/turns`, { limit: PAGE, after }, { signal });
    all.push(...page.data);
    if (!page.has_more || !page.data.length) return all.filter((turn) => turn.prompt_tokens !== null);
    after = page.last_id ?? page.data.at(-1).id;
  }
}

/** What a prompt is made of, from the top of the stack to its bottom. */
const PARTS = [
  ["verbatim", "Verbatim", "--chart-2"],
  ["quotations", "Quotations", "--chart-3"],
  ["user_text", "Kept user text", "--chart-4"],
  ["summaries", "Summaries", "--chart-1"],
  ["instructions", "Instructions", "--gone"],
];

/** A compaction in words; null where there was none. */
function told(compaction) {
  if (compaction?.prepared) return "summary made ahead, no waiting";
  if (!compaction?.ran) return null;
  const ended = compaction.outcome === "failed" ? "compaction failed, shortened without a model" : "compaction";
  return compaction.duration_ms ? `${ended} in ${duration(compaction.duration_ms / 1000)}` : ended;
}

const MARKS = {
  "--chart-4": "compaction, the client waited",
  "--chart-2": "summary made ahead",
  "--chart-5": "compaction failed, shortened without a model",
};

function colorOf(compaction) {
  if (compaction.prepared) return "--chart-2";
  return compaction.outcome === "failed" ? "--chart-5" : "--chart-4";
}

function Sawtooth({ id, turns: all, reload }) {
  const [stretch, setStretch] = useState(Infinity);
  const [withLog, setWithLog] = useState(() => all.at(-1).log_tokens <= TALL * all.at(-1).window);
  const [withReported, setWithReported] = useState(false);
  const sums = useMemo(() => summed(all), [all]);
  const turns = useMemo(() => (stretch < all.length ? all.slice(-stretch) : all), [all, stretch]);
  const x = useMemo(() => turns.map((_, index) => all.length - turns.length + index + 1), [turns]);
  const lines = useMemo(() => linesOf(turns, { withLog, withReported }), [turns, withLog, withReported]);
  const marks = useMemo(
    () => turns.flatMap((turn, index) => (told(turn.compaction) ? [{ index, color: colorOf(turn.compaction) }] : [])),
    [turns],
  );
  const columns = useMemo(() => [
    { label: "Turn", value: (index) => count(turns[index].turn) },
    { label: "Status", value: (index) => turns[index].status },
    { label: "Model", value: (index) => turns[index].model },
    { label: "Compaction", value: (index) => told(turns[index].compaction) ?? "–" },
  ], [turns]);
  const open = (index) => go(["conversations", id, "context"], { item: turns[index].id });
  return html`<div class="stack">
    <${Numbers} label="Tokens of this conversation" of=${[
      { label: "Tokens sent", value: short(sums.sent), title: count(sums.sent) },
      { label: "Tokens saved", value: short(sums.saved), title: count(sums.saved), note: `${percent(sums.saved, sums.log)} of what the whole log would have cost`, kind: sums.saved > 0 ? "good" : "" },
      { label: "Compactions", value: count(sums.compactions), note: compactionsInWords(sums) },
      { label: "Cache hits", value: sums.reported ? percent(sums.cached, sums.reported) : "–", note: sums.reported ? `${short(sums.cached)} of ${short(sums.reported)} reported tokens` : "the provider reported none" },
    ]} />
    <section class="panel">
      <header>
        <h2 class="grow">Tokens sent per turn</h2>
        ${all.length > STRETCHES[0] && html`<label class="check">Show <select class="input small" aria-label="Turns shown" value=${String(stretch)}
          onChange=${(event) => setStretch(Number(event.target.value))}>
          <option value="Infinity">all ${count(all.length)} turns</option>
          ${STRETCHES.filter((turnsShown) => turnsShown < all.length).map((turnsShown) => html`<option value=${turnsShown}>the last ${count(turnsShown)}</option>`)}
        </select></label>`}
        <label class="check"><input type="checkbox" checked=${withLog} onChange=${(event) => setWithLog(event.target.checked)} /> Without compaction</label>
        <label class="check"><input type="checkbox" checked=${withReported} onChange=${(event) => setWithReported(event.target.checked)} /> Reported and cached</label>
        <${Button} small onClick=${reload}>Refresh<//>
      </header>
      <${Chart} label="Tokens sent per turn, ${count(turns.length)} turns" x=${x} xLabel="Answer" lines=${lines} marks=${marks} columns=${columns}
        formatX=${(value) => `Answer ${count(value)}`} formatY=${short} height=${340} onPick=${open}
        pickHint="Click an answer, or press Enter on it, to see what the model saw."
        more=${(index) => html`<${TurnFacts} turn=${turns[index]} />`} />
      <ul class="chart-key small soft" aria-label="Upright lines">
        ${Object.entries(MARKS).filter(([color]) => marks.some((mark) => mark.color === color)).map(([color, words]) => html`<li><span
          class="swatch upright" style=${{ borderColor: `var(${color})` }}></span>${words}</li>`)}
      </ul>
      ${isRaised(turns) && html`<p class="small soft">The compaction threshold rises with kept user text and quotations, which no compaction frees, and until a further compaction pays;
        at most to ${count(turns.at(-1).limit)} tokens, which leaves the answer its room.</p>`}
    </section>
  </div>`;
}

/** Whether the threshold of a view with summaries is above that of one without. */
const isRaised = (turns) => turns.some((turn) => turn.summaries && turn.window === turns[0].window && turn.threshold_tokens > turns[0].threshold_tokens);

function TurnFacts({ turn }) {
  const compaction = told(turn.compaction);
  return html`turn ${count(turn.turn)} · <${Status} of=${turn.status} /> ${turn.model} · ${moment(turn.created_at)}
    ${compaction && html` · ${compaction}`}${turn.recovered && " · sent again, smaller: the provider said it was too long"}
    ${turn.incomplete && " · broken off"}`;
}

function linesOf(turns, { withLog, withReported }) {
  const line = (label, name, color, rest = {}) => ({ label, color, values: turns.map((turn) => turn[name]), ...rest });
  const isOneWindow = new Set(turns.map((turn) => turn.window)).size === 1;
  return [
    ...stackOf(turns),
    ...(withLog ? [line("Whole log", "log_tokens", "--chart-3", { dashed: true })] : []),
    ...(withReported ? [line("Reported", "reported_tokens", "--ink-soft"), line("Cached", "cached_tokens", "--gone")] : []),
    line("Sent", "prompt_tokens", "--ink"),
    line("Compaction threshold", "threshold_tokens", "--chart-5", { dashed: true, stepped: true }),
    ...(isOneWindow ? [] : [line("Limit", "limit", "--gone", { dashed: true, stepped: true })]),
    line("Window", "window", "--ink-soft", { dashed: true, stepped: true }),
  ].filter((one) => one.values.some((value) => value !== null && value !== undefined));
}

/** The parts of each prompt, each on top of those below it; none that no prompt has. */
function stackOf(turns) {
  const tokens = (turn, [name]) => turn.parts?.[name] ?? 0;
  const used = PARTS.filter((part) => turns.some((turn) => tokens(turn, part)));
  return used.map((part, at) => ({
    label: part[1], color: part[2], filled: true,
    values: turns.map((turn) => (turn.parts ? used.slice(at).reduce((sum, below) => sum + tokens(turn, below), 0) : null)),
    told: turns.map((turn) => turn.parts?.[part[0]] ?? null),
  }));
}

function summed(turns) {
  const sum = (name) => turns.reduce((before, turn) => before + (turn[name] ?? 0), 0);
  const ran = turns.filter((turn) => turn.compaction?.ran);
  return {
    sent: sum("prompt_tokens"), saved: sum("saved_tokens"), log: sum("log_tokens"), cached: sum("cached_tokens"), reported: sum("reported_tokens"),
    prepared: turns.filter((turn) => turn.compaction?.prepared).length,
    failed: ran.filter((turn) => turn.compaction.outcome === "failed").length,
    waitedMs: ran.reduce((before, turn) => before + (turn.compaction.duration_ms ?? 0), 0),
    compactions: ran.length + turns.filter((turn) => turn.compaction?.prepared).length,
  };
}

function compactionsInWords({ compactions, prepared, failed, waitedMs }) {
  if (!compactions) return "none was needed";
  return [waitedMs > 0 && `waited ${duration(waitedMs / 1000)}`, prepared && `${count(prepared)} made ahead`, failed && `${count(failed)} failed`].filter(Boolean).join(", ");
}
return { Tokens: Tokens, allTurns: allTurns, told: told };
})();
const $js_pages_conversation_seen = (() => { // js/pages/conversation/seen.js
// What the model saw at a turn, beside the whole log: on the left what became of each message, on the right what was sent.
const { html: html, useEffect: useEffect, useMemo: useMemo, useRef: useRef, useState: useState } = $js_lib;
const { count: count, countOf: countOf } = $js_format;
const { get: get } = $js_api;
const { useLoaded: useLoaded } = $js_load;
const { go: go, to: to } = $js_router;
const { Badge: Badge, Button: Button, ContextBar: ContextBar, DISPOSITIONS: DISPOSITIONS, Disposition: Disposition, Empty: Empty, Failure: Failure, Loading: Loading, Status: Status } = $js_ui_parts;
const { VirtualList: VirtualList } = $js_ui_virtual;
const { SeenDrawing: SeenDrawing } = $js_pages_conversation_seen_drawing;
const { counted: counted, entriesOf: entriesOf, loadView: loadView, olderRows: olderRows } = $js_pages_conversation_seen_view;
const { allTurns: allTurns, told: told } = $js_pages_conversation_tokens;

const ROW_PX = 96;
const ENTRY_PX = 150;
const MAX_CHARS = 6000;
const ANSWER_CHARS = 300;

/** @param {{id: string, route: object, session: object, round?: number}} props  `id` of the conversation */
function Seen({ id, route, session, round = 0 }) {
  const item = route.query.get("item") ?? "";
  const [wish, setWish] = useState({ policy: "", model: "" });
  const asked = useMemo(() => (item ? {} : wish), [item, wish]);
  const turns = useLoaded((signal) => allTurns(id, signal), [id, round]);
  const view = useLoaded((signal) => loadView(id, item, asked, signal), [id, item, asked, round]);
  const isStale = view.loading || (view.data && (view.data.item_id ?? "") !== item);
  return html`<div class="stack seen">
    <section class="panel stack seen-top" aria-label="Which view">
      <${Chooser} id=${id} item=${item} turns=${turns.data ?? []}>
        ${!item && html`<${WhatIf} session=${session} wish=${wish} onWish=${setWish} view=${view.data} />`}
      <//>
      ${item && html`<${Answer} key=${item} id=${id} turn=${turns.data?.find((turn) => turn.id === item)} />`}
      ${view.data && !view.error && html`<${Budget} id=${id} view=${view.data} turn=${turns.data?.find((turn) => turn.id === item)} turns=${turns.data ?? []} />`}
    </section>
    ${view.error?.code === "model_required" && html`<p class="soft">Name a model above to see what it would be sent.</p>`}
    ${view.error && html`<${Failure} error=${view.error} retry=${view.reload} />`}
    ${!view.data && !view.error && html`<${Loading}>Putting the view together…<//>`}
    ${view.data && !view.error && html`<div class=${isStale ? "stack stale" : "stack"} aria-busy=${isStale}>
      <${SideBySide} key=${`${view.data.item_id ?? "now"} ${view.data.policy} ${view.data.model} ${round}`} id=${id} item=${view.data.item_id ?? ""} asked=${asked} view=${view.data} />
    </div>`}
  </div>`;
}

/** Which answer: previous, next, any, or what would be sent now. */
function Chooser({ id, item, turns, children }) {
  const at = item ? turns.findIndex((turn) => turn.id === item) : turns.length;
  const show = (index) => go(["conversations", id, "context"], { item: turns[index]?.id }, { replace: true });
  const turn = turns[at];
  const words = !item ? "Now: what the next request would bring to the model"
    : turn ? `Turn ${count(turn.turn)} of ${count(turns.at(-1).turn)}: what the model saw for this answer` : "What the model saw for an answer";
  return html`<div class="seen-chooser stack">
    <div class="row">
      <${Button} small disabled=${at <= 0} onClick=${() => show(at - 1)}>← Earlier<//>
      <input type="range" class="grow" aria-label="Turn" aria-valuetext=${words} min="0" max=${turns.length} value=${at < 0 ? turns.length : at}
        onInput=${(event) => show(Number(event.target.value))} />
      <${Button} small disabled=${!item || at >= turns.length} onClick=${() => show(at + 1)}>Later →<//>
      <label class="check">Turn <${Draft} aria-label="Number of the turn" type="number" min="1" max=${turns.at(-1)?.turn ?? 1} value=${turn?.turn ?? ""} placeholder="now"
        onDone=${(number) => showTurn(turns, Number(number), show)} /></label>
      <${Button} small aria-pressed=${!item} onClick=${() => show(turns.length)}>Now<//>
    </div>
    <div class="row"><p class="grow" role="status"><strong>${words}</strong>${told(turn?.compaction) && html` <span class="soft">· ${told(turn.compaction)}</span>`}</p>${children}</div>
  </div>`;
}

/** A field that is told when it is left or Enter is pressed; what is being typed outlives a new drawing. */
function Draft({ value, onDone, ...rest }) {
  const [draft, setDraft] = useState(value);
  useEffect(() => setDraft(value), [value]);
  return html`<input class="input small" ...${rest} value=${draft} onInput=${(event) => setDraft(event.target.value)}
    onChange=${(event) => onDone(event.target.value)} />`;
}

function showTurn(turns, number, show) {
  const at = turns.findLastIndex((turn) => turn.turn <= number);
  if (number && at >= 0) show(at);
}

/** The same conversation under another policy, or for another model; none is called. */
function WhatIf({ session, wish, onWish, view }) {
  return html`<label class="check" title="No model is called">With policy <select class="input small" aria-label="With policy" value=${wish.policy} onChange=${(event) => onWish({ ...wish, policy: event.target.value })}>
    <option value="">${view && !wish.policy ? `${view.policy}, as a request would have it` : "as a request would have it"}</option>
    ${(session.policies ?? []).map((name) => html`<option value=${name}>${name}</option>`)}
  </select></label>
  <label class="check" title="No model is called">for model <${Draft} aria-label="For model" spellcheck="false" autocomplete="off" placeholder=${view?.model ?? "its name"} value=${wish.model}
    onDone=${(model) => onWish({ ...wish, model: model.trim() })} /></label>`;
}

/** How the answer begins that the view is of. */
function Answer({ id, turn }) {
  const answer = useLoaded(async (signal) => (turn ? (await get(`v1/conversations/${encodeURIComponent(id)}/log`, { from_seq: turn.seq, limit: 1 }, { signal })).data[0] : null), [id, turn?.seq]);
  if (!answer.data) return null;
  const { text, seq, tool_calls: calls } = answer.data;
  const words = [text, ...calls.map((call) => `calls ${call.name}`)].filter(Boolean).join(" ");
  return html`<p class="break"><span class="soft">Its answer:</span> ${words.length > ANSWER_CHARS ? `${words.slice(0, ANSWER_CHARS)}…` : words || html`<span class="soft">no text</span>`}
    ${" "}<a class="small" href=${to(["conversations", id, "log"], { seq })}>In the log</a></p>`;
}

function Budget({ id, view, turn, turns }) {
  const threshold = view.compacts_above ?? turn?.threshold_tokens;
  return html`<div class="seen-budget">
    ${view.status === "full" ? view.reason && html`<p>${view.reason}</p>` : html`<${SeenDrawing} id=${id} view=${view} turn=${turn} turns=${turns} />`}
    <${ContextBar} tokens=${view.prompt_tokens} window=${view.window} threshold=${threshold} label="Prompt in the window" />
    <div class="row small">
      <${Status} of=${view.status} />
      <span>limit ${count(view.limit)}</span>
      ${threshold && html`<span>· compaction threshold ${count(threshold)}</span>`}
      <span>· policy ${view.policy} · ${view.model}</span>
      ${view.user_text?.messages > 0 && html`<span>· user text ${count(view.user_text.tokens)}: ${count(view.user_text.verbatim)} whole, ${count(view.user_text.shortened)} shortened, ${count(view.user_text.left_out)} left out</span>`}
      ${view.dropped_messages > 0 && html`<${Badge} kind="warn">${count(view.dropped_messages)} dropped<//>`}
      ${!view.fits && html`<${Badge} kind="bad">does not fit<//>`}
      ${view.exact === false && html`<${Badge} kind="warn" title=${view.inexact_reason}>not byte for byte<//>`}
    </div>
    ${view.to_summarize?.length > 0 && html`<p class="small">Would be summarized first: ${view.to_summarize.map((range, at) => html`${at > 0 && ", "}<a
      href=${to(["conversations", id, "log"], { seq: range.from_seq })}>#${range.from_seq} to #${range.to_seq - 1}</a>${range.folds.length > 0 && ` (folds ${range.folds.length} summaries)`}`)}</p>`}
    ${view.notes?.length > 0 && html`<details class="small"><summary>How this was decided</summary><ul>${view.notes.map((note) => html`<li><code>${note.code}</code> ${factsOf(note)}</li>`)}</ul></details>`}
  </div>`;
}

const factsOf = ({ code, ...facts }) => Object.entries(facts).map(([name, value]) => `${name.replaceAll("_", " ")} ${typeof value === "number" ? count(value) : JSON.stringify(value)}`).join(", ");

function SideBySide({ id, item, asked, view }) {
  const { rows, isWhole, error } = useRows(id, item, asked, view);
  const [kind, setKind] = useState("");
  const [picked, setPicked] = useState(null);
  const entries = useMemo(() => entriesOf(view, rows), [view, rows]);
  const counts = useMemo(() => counted(rows), [rows]);
  const seqs = useMemo(() => listed(rows, kind), [rows, kind]);
  const pickRow = (seq) => setPicked({ ranges: [{ from_seq: seq, to_seq: seq + 1 }], from: "log" });
  const pickEntry = (entry, index) => setPicked({ ranges: entry.ranges, from: "sent", index });
  const logTarget = useMemo(() => {
    if (picked?.from !== "sent" || picked.ranges.length === 0) return null;
    const index = seqs.findIndex((seq) => seq >= picked.ranges[0].from_seq);
    return index < 0 ? null : { index, align: "start" };
  }, [picked]);
  const sentTarget = useMemo(() => {
    if (picked?.from !== "log") return null;
    const index = entries.findIndex((entry) => touches(entry, picked));
    return index < 0 ? null : { index, align: "start" };
  }, [picked]);
  const start = useRef(null);
  if (start.current === null && seqs.length) start.current = { index: seqs.length - 1, align: "end", isStart: true };
  return html`<div class="seen-sides">
    <section class="panel" aria-label="The whole log">
      <header><h2>The whole log</h2><span class="soft small">${countOf(rows.length, "message")}${!isWhole && !error && html` · <span class="loading">reading</span>`}</span></header>
      ${error && html`<${Failure} error=${error} />`}
      <${Legend} counts=${counts} kind=${kind} onKind=${setKind} />
      ${seqs.length
        ? html`<${VirtualList} key=${kind} label="Messages of the log" count=${seqs.length} estimate=${ROW_PX} height="62vh" target=${logTarget ?? start.current}
            row=${(index) => html`<${LogRow} row=${rows[seqs[index]]} isPicked=${covers(picked, seqs[index])} onPick=${pickRow} />`} />`
        : html`<${Empty}>Nothing was stored before this answer.<//>`}
    </section>
    <section class="panel" aria-label="What was sent">
      <header><h2>${view.object === "context.seen" ? "What the model saw" : "What would be sent"}</h2><span class="soft small">${countOf(view.sent?.length ?? 0, "message")}, ${count(view.prompt_tokens)} tokens</span></header>
      <p class="small soft seen-note">${view.object === "context.seen" ? view.instructions === null ? "Its instructions are not kept: the answer is older than this version, or they were erased." : "" : "A new message would follow."}${picked && picked.from === "log" && !sentTarget && " The message that you chose was not sent, and nothing stands for it."}</p>
      <${VirtualList} label="Messages as they are sent" count=${entries.length} estimate=${ENTRY_PX} height="62vh" target=${sentTarget}
        row=${(index) => html`<${SentRow} id=${id} entry=${entries[index]} isPicked=${picked?.from === "sent" ? picked.index === index : Boolean(picked) && touches(entries[index], picked)} onPick=${() => pickEntry(entries[index], index)} />`} />
    </section>
  </div>`;
}

const covers = (picked, seq) => Boolean(picked) && picked.ranges.some((range) => seq >= range.from_seq && seq < range.to_seq);
const touches = (entry, picked) => entry.ranges.some((range) => covers(picked, range.from_seq) || picked.ranges.some((one) => one.from_seq >= range.from_seq && one.from_seq < range.to_seq));

/** The seqs that the list shows. */
function listed(rows, kind) {
  const seqs = rows.map((_, seq) => seq);
  return kind ? seqs.filter((seq) => rows[seq]?.disposition === kind) : seqs;
}

/** Rows by seq: the newest at once, the others as they come. */
function useRows(id, item, asked, view) {
  const [state, setState] = useState(() => ({ rows: placed([], view.messages.data), isWhole: !view.messages.has_more, error: null }));
  useEffect(() => {
    const leaving = new AbortController();
    const read = async () => {
      for await (const page of olderRows(id, item, asked, view.messages, leaving.signal)) {
        setState((before) => ({ ...before, rows: placed(before.rows, page) }));
      }
      setState((before) => ({ ...before, isWhole: true }));
    };
    read().catch((error) => leaving.signal.aborted || setState((before) => ({ ...before, error })));
    return () => leaving.abort();
  }, [view]);
  return state;
}

function placed(before, page) {
  const length = Math.max(before.length, (page[0]?.seq ?? -1) + 1);
  const rows = Array.from({ length }, (_, seq) => before[seq]);
  for (const row of page) rows[row.seq] = row;
  return rows;
}

function Legend({ counts, kind, onKind }) {
  return html`<div class="seen-legend" role="group" aria-label="Show only">
    ${counts.map(([name, number]) => html`<button type="button" class="badge ${DISPOSITIONS[name]?.[0] ?? "gone"}" aria-pressed=${kind === name}
      onClick=${() => onKind(kind === name ? "" : name)}>${DISPOSITIONS[name]?.[1] ?? name} <strong class="number">${count(number)}</strong></button>`)}
  </div>`;
}

function LogRow({ row, isPicked, onPick }) {
  if (!row) return html`<div class="seen-row"><span class="loading soft small">Reading…</span></div>`;
  const [family] = DISPOSITIONS[row.disposition] ?? ["gone"];
  return html`<div class="seen-row ${family} ${isPicked ? "picked" : ""}">
    <div class="row small">
      <${Button} small kind="plain" aria-pressed=${isPicked} aria-label="Message ${row.seq}: show what was sent for it" onClick=${() => onPick(row.seq)}>#${row.seq}<//>
      <strong>${row.role}</strong> <${Disposition} of=${row.disposition} />
      ${row.pinned && row.disposition !== "pinned" && html`<${Badge}>pinned<//>`}${row.quoted && html`<${Badge}>quoted<//>`}
      <span class="soft number seen-tokens">${row.shown_tokens === row.tokens ? `${count(row.tokens)} tokens` : `${count(row.tokens)} → ${count(row.shown_tokens)} tokens`}</span>
    </div>
    <p class="seen-text break">${row.text || html`<span class="soft">no text</span>`}</p>
    ${row.disposition !== "verbatim" && html`<p class="small soft">${row.reason}</p>`}
  </div>`;
}

const KINDS = { instructions: "instructions", introduction: "how summaries are introduced", summary: "summary", note: "note", user_text: "what the user said", quotation: "quoted for what follows" };

function SentRow({ id, entry, isPicked, onPick }) {
  const [isOpen, setOpen] = useState(false);
  const family = entry.kind === "message" ? (DISPOSITIONS[entry.row?.disposition]?.[0] ?? "verbatim") : entry.kind === "summary" ? "folded" : "kept";
  const isLong = entry.text.length > MAX_CHARS;
  const place = entry.ranges.map(({ from_seq, to_seq }) => (to_seq - from_seq > 1 ? `#${from_seq} to #${to_seq - 1}` : `#${from_seq}`)).join(", ");
  return html`<div class="seen-row ${family} ${isPicked ? "picked" : ""}">
    <div class="row small">
      ${place && html`<${Button} small kind="plain" aria-pressed=${isPicked} aria-label="${place}: show in the log" onClick=${onPick}>${place}<//>`}
      <strong>${entry.role}</strong>
      ${entry.kind === "message" ? entry.row && html`<${Disposition} of=${entry.row.disposition} />` : html`<span class="badge ${family}">${KINDS[entry.kind]}</span>`}
      ${entry.summary && html`<a class="small" href=${to(["conversations", id, "summaries"], { summary: entry.summary.id })}>${count(entry.summary.tokens)} tokens, revision ${entry.summary.revision}</a>`}
    </div>
    <div class="text">${isLong && !isOpen ? `${entry.text.slice(0, MAX_CHARS)}…` : entry.text || html`<span class="soft">no text</span>`}</div>
    ${isLong && html`<${Button} small onClick=${() => setOpen(!isOpen)}>${isOpen ? "Less" : `All ${count(entry.text.length)} characters`}<//>`}
  </div>`;
}
return { Seen: Seen };
})();
const $js_pages_conversation_pins = (() => { // js/pages/conversation/pins.js
// What every view shows whatever is summarized around it: pinned messages, and what the user said.
const { html: html, useState: useState } = $js_lib;
const { get: get, send: send } = $js_api;
const { useLoaded: useLoaded } = $js_load;
const { to: to } = $js_router;
const { useAction: useAction } = $js_ui_confirm;
const { Button: Button, Failure: Failure, Loaded: Loaded } = $js_ui_parts;
const { placeOf: placeOf } = $js_pages_conversation_place;

const PAGE = 100;

function Pins({ id, record, round, manages, onChange }) {
  const pins = useLoaded((signal) => allOf(placeOf(id, "pins"), signal), [id, record.updated_at, round]);
  const unpinning = useAction((pin) => send("DELETE", placeOf(id, "items", pin.id, "pin")), onChange);
  return html`<section class="stack" aria-label="Pinned messages">
    <h2>Pinned messages</h2>
    <${Failure} error=${unpinning.error} />
    <${Loaded} from=${pins} waiting="Looking for pins…">${(found) =>
      found.length === 0
        ? html`<p class="soft">None. Pin a message in the log to have it always shown word for word.</p>`
        : html`<ul class="plain-list panel pins">${found.flatMap((pin) => pin.messages.map((message, index) => html`<li key=${message.id} class="row">
            <a class="number" href=${to(["conversations", id, "log"], { seq: message.seq })}>#${message.seq}</a>
            <span class="small soft">${message.role}</span>
            <span class="grow break">${message.text}</span>
            ${manages && index === 0 && html`<${Button} small disabled=${unpinning.busy} onClick=${() => unpinning.run(pin)}>Unpin<//>`}
          </li>`))}</ul>`}<//>
  </section>`;
}

function UserText({ id, record, round, manages, onChange }) {
  const kept = useLoaded((signal) => allOf(placeOf(id, "user_text"), signal), [id, record.updated_at, round]);
  const pinning = useAction((one) => send("POST", placeOf(id, "items", one.id, "pin")), onChange);
  const dropping = useAction((one) => send("DELETE", placeOf(id, "user_text", one.id)), onChange);
  return html`<section class="stack" aria-label="What the user said">
    <h2>What the user said</h2>
    <${Failure} error=${pinning.error ?? dropping.error} />
    <${Loaded} from=${kept} waiting="Looking for user text…">${(found) =>
      found.length === 0
        ? html`<p class="soft">Nothing. What the user said is kept here word for word once its message is no longer shown.</p>`
        : html`<ul class="plain-list panel pins">${found.map((one) => html`<li key=${one.id} class="row">
            <a class="number" href=${to(["conversations", id, "log"], { seq: one.seq })}>#${one.seq}</a>
            <span class="small soft">${one.verbatim ? "whole" : "shortened"}</span>
            <span class="grow break">${one.text}</span>
            ${manages && html`<${Button} small disabled=${pinning.busy} onClick=${() => pinning.run(one)}>Pin<//>`}
            ${manages && html`<${Button} small disabled=${dropping.busy} onClick=${() => dropping.run(one)}>Drop<//>`}
          </li>`)}</ul>`}<//>
  </section>`;
}

async function allOf(place, signal) {
  const found = [];
  for (let page = null; !page || page.has_more; ) {
    page = await get(place, { limit: PAGE, after: page?.last_id }, { signal });
    found.push(...page.data);
  }
  return found;
}
return { Pins: Pins, UserText: UserText };
})();
const $js_ui_diff = (() => { // js/ui/diff.js
// What changed between two texts, word by word.
const { html: html } = $js_lib;

const MAX_CELLS = 4_000_000;
/** Texts that have less than this in common are told one after the other: single words say nothing. */
const LEAST_ALIKE = 0.3;

/**
 * @returns {{kind: "same"|"gone"|"new", text: string}[]|null} null: too long to compare
 */
function compared(before, after) {
  const old = before.match(/\s+|[^\s]+/g) ?? [];
  const now = after.match(/\s+|[^\s]+/g) ?? [];
  let start = 0;
  while (start < old.length && start < now.length && old[start] === now[start]) start += 1;
  let end = 0;
  while (end < old.length - start && end < now.length - start && old.at(-1 - end) === now.at(-1 - end)) end += 1;
  const [a, b] = [old.slice(start, old.length - end), now.slice(start, now.length - end)];
  if (a.length * b.length > MAX_CELLS) return null;
  const pieces = [["same", old.slice(0, start)], ...steps(a, b), ["same", end ? old.slice(-end) : []]];
  const found = joined(pieces.map(([kind, words]) => ({ kind, text: words.join("") })));
  const alike = found.reduce((sum, { kind, text }) => sum + (kind === "same" ? text.length : 0), 0);
  if (alike >= LEAST_ALIKE * Math.max(before.length, after.length)) return found;
  return [{ kind: "gone", text: `${before}\n` }, { kind: "new", text: after }];
}

/** The longest common subsequence, walked from the beginning. */
function steps(a, b) {
  const width = b.length + 1;
  const longest = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      const here = i * width + j;
      longest[here] = a[i] === b[j] ? longest[here + width + 1] + 1 : Math.max(longest[here + width], longest[here + 1]);
    }
  }
  const found = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      found.push(["same", [a[i]]]);
      i += 1;
      j += 1;
    } else if (j === b.length || (i < a.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) {
      found.push(["gone", [a[i]]]);
      i += 1;
    } else {
      found.push(["new", [b[j]]]);
      j += 1;
    }
  }
  return found;
}

function joined(pieces) {
  const made = [];
  for (const piece of pieces) {
    if (!piece.text) continue;
    if (made.at(-1)?.kind === piece.kind) made.at(-1).text += piece.text;
    else made.push({ ...piece });
  }
  return made;
}

function Diff({ before, after }) {
  const pieces = compared(before, after);
  if (pieces === null) return html`<p class="soft small">These texts are too long to be compared here.</p>`;
  if (pieces.every((piece) => piece.kind === "same")) return html`<p class="soft small">The texts are the same.</p>`;
  return html`<p class="text diff">${pieces.map((piece) => {
    if (piece.kind === "gone") return html`<del>${piece.text}</del>`;
    return piece.kind === "new" ? html`<ins>${piece.text}</ins>` : piece.text;
  })}</p>`;
}
return { compared: compared, Diff: Diff };
})();
const $js_pages_conversation_revisions = (() => { // js/pages/conversation/revisions.js
// All texts that a summary had, newest first, and what changed from each to the next.
const { html: html, useState: useState } = $js_lib;
const { get: get } = $js_api;
const { useLoaded: useLoaded } = $js_load;
const { Diff: Diff } = $js_ui_diff;
const { Button: Button, Loaded: Loaded, When: When } = $js_ui_parts;
const { SummaryFacts: SummaryFacts } = $js_pages_conversation_message;
const { placeOf: placeOf } = $js_pages_conversation_place;

function Revisions({ id, summary, manages, onRollBack }) {
  const [isCompared, setCompared] = useState(true);
  const one = useLoaded((signal) => get(placeOf(id, "summaries", summary.id), {}, { signal }), [summary.id, summary.revision]);
  return html`<div class="revisions stack">
    <label class="row small"><input type="checkbox" checked=${isCompared} onChange=${(event) => setCompared(event.target.checked)} />
      Show what changed</label>
    <${Loaded} from=${one} waiting="Loading revisions…">${({ revisions }) => html`<ol reversed class="plain-list stack">
      ${revisions.toReversed().map((revision, place) => {
        const before = revisions[revisions.length - 2 - place];
        return html`<li key=${revision.revision} class="revision">
          <p class="row">
            <${SummaryFacts} summary=${revision} /><span class="small soft"><${When} at=${revision.created_at} /></span>
            ${manages && place > 0 && html`<${Button} small onClick=${() => onRollBack(revision.revision)}>Roll back to this<//>`}
          </p>
          ${isCompared && before ? html`<${Diff} before=${before.text} after=${revision.text} />` : html`<p class="text">${revision.text}</p>`}
        </li>`;
      })}
    </ol>`}<//>
  </div>`;
}
return { Revisions: Revisions };
})();
const $js_pages_conversation_summaries = (() => { // js/pages/conversation/summaries.js
// The summaries of a conversation and all texts they had; whoever knows better corrects them here.
const { html: html, useEffect: useEffect, useRef: useRef, useState: useState } = $js_lib;
const { get: get, send: send } = $js_api;
const { useLoaded: useLoaded } = $js_load;
const { to: to } = $js_router;
const { Confirm: Confirm } = $js_ui_confirm;
const { Markdown: Markdown } = $js_ui_markdown;
const { Badge: Badge, Button: Button, Copy: Copy, Empty: Empty, Field: Field, Loaded: Loaded, When: When } = $js_ui_parts;
const { SummaryFacts: SummaryFacts } = $js_pages_conversation_message;
const { Pins: Pins, UserText: UserText } = $js_pages_conversation_pins;
const { mayManage: mayManage, placeOf: placeOf } = $js_pages_conversation_place;
const { Revisions: Revisions } = $js_pages_conversation_revisions;
const { allSummaries: allSummaries } = $js_pages_conversation_summary_list;

const MAX_INSTRUCTIONS_CHARS = 10_000;

function Summaries({ id, record, route, session, round, onChange }) {
  const [withInactive, setInactive] = useState(false);
  const [open, setOpen] = useState(null);
  const list = useLoaded(
    (signal) => allSummaries(id, { all: withInactive, signal }),
    [id, record.summaries, record.updated_at, round, withInactive],
  );
  const done = () => {
    setOpen(null);
    onChange();
  };
  const close = () => setOpen(null);
  const manages = mayManage(session);
  const chosen = route.query.get("summary");
  return html`<div class="stack">
    <div class="row">
      <h2 class="grow">Summaries</h2>
      <label class="row small"><input type="checkbox" checked=${withInactive} onChange=${(event) => setInactive(event.target.checked)} />
        Also those that are no longer used</label>
    </div>
    ${!manages && html`<p class="small soft">This key may read; changing summaries takes the scope <code>manage</code>.</p>`}
    <${Loaded} from=${list} waiting="Loading summaries…">${(found) =>
      found.length === 0
        ? html`<${Empty}>No summaries yet. They are written when the prompt passes the policy’s line, or with “Compact…”.<//>`
        : found.map((one) => html`<${Summary} key=${one.id} id=${id} summary=${one} manages=${manages} isChosen=${one.id === chosen}
            onAsk=${(what, extra) => setOpen({ what, summary: one, ...extra })} />`)}<//>
    <${Pins} id=${id} record=${record} round=${round} manages=${manages} onChange=${onChange} />
    <${UserText} id=${id} record=${record} round=${round} manages=${manages} onChange=${onChange} />
    ${open?.what === "edit" && html`<${Edit} id=${id} summary=${open.summary} onClose=${close} onDone=${done} />`}
    ${open?.what === "regenerate" && html`<${Regenerate} id=${id} summary=${open.summary} onClose=${close} onDone=${done} />`}
    ${open?.what === "delete" && html`<${Delete} id=${id} summary=${open.summary} onClose=${close} onDone=${done} />`}
    ${open?.what === "rollback" && html`<${RollBack} id=${id} summary=${open.summary} to=${open.revision} onClose=${close} onDone=${done} />`}
  </div>`;
}

function Summary({ id, summary, manages, isChosen, onAsk }) {
  const [showsRevisions, setRevisions] = useState(false);
  const element = useRef(null);
  useEffect(() => {
    if (isChosen) element.current.scrollIntoView({ block: "start" });
  }, [isChosen]);
  const last = summary.to_seq - 1;
  const named = (action) => `${action} summary of messages ${summary.from_seq} to ${last}`;
  return html`<section class="panel summary ${isChosen ? "found" : ""}" ref=${element} aria-label="Summary of messages ${summary.from_seq} to ${last}">
    <header>
      <h3><a href=${to(["conversations", id, "log"], { seq: summary.from_seq })}>Messages ${summary.from_seq}–${last}</a></h3>
      ${!summary.active && html`<${Badge} title="No view is made of it">not used<//>`}
      ${summary.active && !summary.shown && html`<${Badge} title="It was made ahead: it stands in once the prompt passes the compaction threshold">ready, not shown yet<//>`}
      ${summary.folds.length > 0 && html`<${Badge} title="It stands for other summaries">fold of ${summary.folds.length}<//>`}
      <${SummaryFacts} summary=${summary} />
      <span class="small soft"><${When} at=${summary.created_at} /></span>
    </header>
    <${Markdown} text=${summary.text} />
    <div class="row actions">
      <${Button} small aria-expanded=${showsRevisions} aria-label=${named(showsRevisions ? "Hide revisions" : `Revisions (${summary.revision})`)} onClick=${() => setRevisions(!showsRevisions)}>
        ${showsRevisions ? "Hide revisions" : `Revisions (${summary.revision})`}<//>
      <${Copy} text=${summary.text} name=${named("Copy")} />
      ${manages && html`
        <${Button} small aria-label=${named("Edit…")} onClick=${() => onAsk("edit")}>Edit…<//>
        <${Button} small aria-label=${named("Regenerate…")} onClick=${() => onAsk("regenerate")}>Regenerate…<//>
        <${Button} small kind="danger" aria-label=${named("Delete…")} onClick=${() => onAsk("delete")}>Delete…<//>`}
    </div>
    ${showsRevisions && html`<${Revisions} id=${id} summary=${summary} manages=${manages} onRollBack=${(revision) => onAsk("rollback", { revision })} />`}
  </section>`;
}

function Edit({ id, summary, onClose, onDone }) {
  const [text, setText] = useState(summary.text);
  const save = async () => onDone(await send("PATCH", placeOf(id, "summaries", summary.id), { text, revision: summary.revision }));
  return html`<${Confirm} title="Edit this summary" action="Save as a new revision" kind="primary" onClose=${onClose} onConfirm=${save}
    isReady=${text.trim() !== "" && text !== summary.text}>
    <${Field} label="Text" hint="Models read this in place of the messages. It must be shorter than they are; no model replaces it later.">
      ${(field, hint) => html`<textarea id=${field} aria-describedby=${hint} class="input" rows="12" value=${text}
        onInput=${(event) => setText(event.target.value)}></textarea>`}
    <//>
  <//>`;
}

function Regenerate({ id, summary, onClose, onDone }) {
  const [instructions, setInstructions] = useState("");
  const [model, setModel] = useState("");
  const wish = { instructions: instructions.trim() || null, model: model.trim() || null };
  const ask = async () => onDone(await send("POST", placeOf(id, "summaries", summary.id, "regenerate"), wish));
  return html`<${Confirm} title="Have it written anew" action="Regenerate" kind="primary" onClose=${onClose} onConfirm=${ask}>
    <p>A model reads the same messages again. This text is kept as a revision; if the model fails, nothing changes.</p>
    <${Field} label="What to pay attention to">
      ${(field) => html`<textarea id=${field} class="input" rows="4" maxlength=${MAX_INSTRUCTIONS_CHARS} value=${instructions}
        onInput=${(event) => setInstructions(event.target.value)}></textarea>`}
    <//>
    <${Field} label="Model" hint="Left empty: the one that was asked last.">
      ${(field, hint) => html`<input id=${field} aria-describedby=${hint} class="input" maxlength="256" value=${model}
        onInput=${(event) => setModel(event.target.value)} />`}
    <//>
  <//>`;
}

function Delete({ id, summary, onClose, onDone }) {
  const remove = async () => onDone(await send("DELETE", placeOf(id, "summaries", summary.id)));
  return html`<${Confirm} title="Delete this summary?" action="Delete with all its texts" onClose=${onClose} onConfirm=${remove}>
    <p>Messages ${summary.from_seq}–${summary.to_seq - 1} are shown word for word again, or summarized anew when the room is needed.
      Branches that share it lose it, too.</p>
  <//>`;
}

function RollBack({ id, summary, to: revision, onClose, onDone }) {
  const wish = { revision, current_revision: summary.revision };
  const ask = async () => onDone(await send("POST", placeOf(id, "summaries", summary.id, "rollback"), wish));
  return html`<${Confirm} title=${`Back to revision ${revision}?`} action="Roll back" kind="primary" onClose=${onClose} onConfirm=${ask}>
    <p>Its text becomes the newest revision; those in between stay. The next prompt begins with other bytes, so the provider’s cache is missed once.</p>
  <//>`;
}
return { Summaries: Summaries };
})();
const $js_pages_conversation_page = (() => { // js/pages/conversation/page.js
// One conversation: its head, and the view that the address names.
const { html: html, useCallback: useCallback, useEffect: useEffect, useRef: useRef, useState: useState } = $js_lib;
const { get: get } = $js_api;
const { useCommands: useCommands } = $js_commands;
const { useEvery: useEvery, useLoaded: useLoaded } = $js_load;
const { go: go, to: to } = $js_router;
const { Failure: Failure, Loading: Loading, Tabs: Tabs } = $js_ui_parts;
const { Branches: Branches } = $js_pages_conversation_branches;
const { Head: Head } = $js_pages_conversation_head;
const { Log: Log } = $js_pages_conversation_log;
const { placeOf: placeOf } = $js_pages_conversation_place;
const { Seen: Seen } = $js_pages_conversation_seen;
const { Summaries: Summaries } = $js_pages_conversation_summaries;
const { Tokens: Tokens } = $js_pages_conversation_tokens;

const LOOK_AGAIN_SECONDS = 10;
const VIEWS = [
  { name: "log", text: "Log", view: Log },
  { name: "context", text: "Context", view: Seen },
  { name: "tokens", text: "Tokens", view: Tokens },
  { name: "summaries", text: "Summaries", view: Summaries },
  { name: "branches", text: "Branches", view: Branches },
];

function Conversation({ route, session }) {
  const [, named, asked = "log"] = route.parts;
  const record = useLoaded((signal) => get(placeOf(named), { "include[]": "title" }, { signal }), [named]);
  const [round, setRound] = useState(0);
  useEvery(LOOK_AGAIN_SECONDS, record.reload);
  useCommands(VIEWS.map(({ name, text }) => ({ text: `View: ${text}`, run: () => go(["conversations", named, name]) })));
  const changed = useCallback(() => {
    record.reload();
    setRound((before) => before + 1);
  }, []);
  const isAwaited = useRef(false);
  const isLoaded = record.data !== null;
  useEffect(() => {
    if (isLoaded && isAwaited.current) document.querySelector("h1")?.focus();
  }, [isLoaded]);
  if (!isLoaded) {
    return record.error
      ? html`<${Missing} named=${named} error=${record.error} retry=${record.reload} />`
      : html`<h1 class="visually-hidden" tabindex="-1" onFocus=${() => (isAwaited.current = true)}>Conversation</h1>
          <${Loading}>Loading the conversation…<//>`;
  }
  const { id } = record.data;
  const current = VIEWS.find((one) => one.name === asked) ?? VIEWS[0];
  const tabs = VIEWS.map(({ name, text }) => ({ name, text, href: to(["conversations", named, name]) }));
  return html`
    <${Head} record=${record.data} session=${session} round=${round} onChange=${changed} />
    ${record.error && html`<${Failure} error=${record.error} retry=${record.reload} />`}
    <${Tabs} label="Views of the conversation" tabs=${tabs} current=${current.name} />
    <${current.view} key=${current.name} id=${id} record=${record.data} route=${route} session=${session}
      round=${round} onChange=${changed} />
  `;
}

function Missing({ named, error, retry }) {
  if (error.status !== 404) {
    return html`<h1 tabindex="-1">Conversation</h1><${Failure} error=${error} retry=${retry} />`;
  }
  return html`<div class="page-head"><h1 tabindex="-1">There is no such conversation</h1></div>
    <div class="panel stack">
      <p>Nothing is known here under <code class="break">${named}</code>. It was deleted, or it belongs to another key or
        end user than the one you look with.</p>
      <p><a href="#/conversations">To the conversations</a></p>
    </div>`;
}
return { Conversation: Conversation };
})();
const $js_pages_operation_access = (() => { // js/pages/operation/access.js
// Why a page for operators shows nothing, and what to do about it.
const { html: html } = $js_lib;
const { Failure: Failure } = $js_ui_parts;

/**
 * The error of a page that only operators may see.
 * @param {object} props
 * @param {Error} props.error
 * @param {string} props.what  what the page shows: "requests"
 * @param {any} [props.setting]  what switches it on, where it can be switched off: the gateway then answers 404
 * @param {() => void} props.retry
 */
function NotShown({ error, what, setting, retry }) {
  if (error.status === 401 || error.status === 403) {
    return html`<div class="notice" role="alert"><p><strong>Only an operator may see ${what}.</strong></p>
      <p class="hint">Open the link that the gateway prints at its start, or make a key with the scope <code>admin</code>:
        <code>concertina keys create --name operator --scopes admin</code>, then choose “Change key”.</p></div>`;
  }
  if (error.status === 404 && setting) {
    return html`<div class="notice" role="alert"><p><strong>The gateway keeps no ${what}.</strong></p>
      <p class="hint">Set ${setting} in its configuration and start it again.</p></div>`;
  }
  return html`<${Failure} error=${error} retry=${retry} />`;
}

/** What is shown is from before the last attempt to refresh it. */
function Outdated({ error }) {
  return html`<div class="notice warn" role="alert">What is shown is old: ${error.message}</div>`;
}

/** The token of a link ended with the start of the gateway that printed it. */
function OldLink() {
  return html`<div class="notice warn" role="alert"><p><strong>This link is from an earlier start of the gateway.</strong></p>
    <p class="hint">Open the link in its newest start line. <code>auth.operator_token</code> keeps one token for all starts.</p></div>`;
}
return { NotShown: NotShown, Outdated: Outdated, OldLink: OldLink };
})();
const $js_pages_operation_keys = (() => { // js/pages/operation/keys.js
// All keys of the gateway by their names, for pages that filter by them.
const { html: html } = $js_lib;
const { get: get } = $js_api;
const { useLoaded: useLoaded } = $js_load;

const MOST = 100;

/** @param {AbortSignal} signal  @returns {Promise<object[]>} oldest first */
async function readAllKeys(signal) {
  const found = [];
  for (;;) {
    const page = await get("v1/admin/keys", { limit: MOST, after: found.at(-1)?.id }, { signal });
    found.push(...page.data);
    if (!page.has_more) return found;
  }
}

/** A choice of one key, or of none. The other properties are those of a Choice. */
function KeyChoice({ value, ...rest }) {
  const keys = useLoaded(readAllKeys, []);
  return html`<${Choice} value=${value} choices=${keyChoices(keys.data ?? [], value)} ...${rest} />`;
}

/** Keys by their names; of two with one name the characters that end the key tell them apart. */
function keyChoices(keys, chosen) {
  const isShared = (key) => keys.some((other) => other !== key && other.name === key.name);
  const choices = keys.map((key) => [key.id, isShared(key) ? `${key.name} (${key.hint})` : key.name]);
  const isUnknown = chosen && !keys.some((key) => key.id === chosen);
  return [["", "any key"], ...choices, ...(isUnknown ? [[chosen, chosen]] : [])];
}

/**
 * One of several values; the first stands for no filter.
 * @param {{value: string, choices: [string, string][], onChoose: (value: string) => void}} props
 */
function Choice({ value, choices, onChoose, ...rest }) {
  return html`<select class="input" data-set=${value ? "" : undefined} value=${value} onChange=${(event) => onChoose(event.target.value)} ...${rest}>
    ${choices.map(([one, text]) => html`<option key=${one} value=${one}>${text}</option>`)}</select>`;
}

/** What `context_status` may be, as choices. */
const CONTEXT_CHOICES = ["", "full", "summarized", "trimmed", "bypassed", "degraded"].map((one) => [one, one || "any context"]);
return { readAllKeys: readAllKeys, KeyChoice: KeyChoice, Choice: Choice, CONTEXT_CHOICES: CONTEXT_CHOICES };
})();
const $js_pages_conversations_filters = (() => { // js/pages/conversations/filters.js
// Which conversations are wanted, as the address says it and as the API takes it.
const { html: html, useEffect: useEffect, useState: useState } = $js_lib;
const { useSettled: useSettled } = $js_load;
const { Button: Button, Field: Field } = $js_ui_parts;
const { CONTEXT_CHOICES: CONTEXT_CHOICES, Choice: Choice, KeyChoice: KeyChoice } = $js_pages_operation_keys;

const DAY_SECONDS = 86_400;
const SETTLE_MS = 400;
const DATES = [
  ["created_after", "Created from"],
  ["created_before", "Created until"],
  ["updated_after", "Updated from"],
  ["updated_before", "Updated until"],
];
/** By what a request of the conversation was like: name in the address and in the API. */
const REQUESTED = ["context_status", "model", "key_id"];
/** Two exchanges are four messages, or more. */
const MESSAGES = [["", "any number"], ["4", "more than one exchange"], ["10", "10 and more"], ["50", "50 and more"], ["200", "200 and more"]];
/** In the address: what it says, and how the API takes it. */
const ORDERS = {
  "": ["last active first", { sort: "updated_at", order: "desc" }],
  desc: ["newest first", { order: "desc" }],
  asc: ["oldest first", { order: "asc" }],
};
const NOTHING = { q: "", order: "", name: "", value: "", tenant: "", min_messages: "", context_status: "", model: "", key_id: "", ...Object.fromEntries(DATES.map(([name]) => [name, ""])) };

/** @param {URLSearchParams} query  @returns {Record<string, string>} */
function asked(query) {
  return Object.fromEntries(Object.keys(NOTHING).map((name) => [name, query.get(name) ?? ""]));
}

function isFiltered(wish) {
  return Object.entries(wish).some(([name, value]) => value !== "" && name !== "q" && name !== "order");
}

/** What `GET /v1/conversations` is asked with. Days are the reader's own, and both ends belong to a range. */
function listQuery(wish) {
  const query = { ...(ORDERS[wish.order] ?? ORDERS[""])[1], min_messages: wish.min_messages };
  for (const name of REQUESTED) query[name] = wish[name];
  for (const [name] of DATES) {
    const midnight = Date.parse(`${wish[name]}T00:00`) / 1000;
    if (Number.isNaN(midnight)) continue;
    query[name] = name.endsWith("after") ? Math.max(0, midnight - 1) : midnight + DAY_SECONDS;
  }
  if (wish.name) query[`metadata[${wish.name}]`] = wish.value;
  return query;
}

/** One line: how many filters there are, and the order. */
function FilterBar({ wish, isOpen, onOpen, onAsk }) {
  const number = [...DATES.map(([name]) => name), ...REQUESTED, "min_messages", "name", "tenant"].filter((name) => wish[name]).length;
  return html`
    <${Button} aria-expanded=${isOpen} onClick=${onOpen}>${number ? `Filters (${number})` : "Filters"}<//>
    ${number > 0 && html`<${Button} kind="plain" onClick=${() => onAsk({ ...NOTHING, order: wish.order })}>Clear<//>`}
    <label><span class="visually-hidden">Order</span>
      <select class="input" value=${wish.order} onChange=${(event) => onAsk({ order: event.target.value })}>
        ${Object.entries(ORDERS).map(([order, [text]]) => html`<option key=${order} value=${order}>${text}</option>`)}
      </select>
    </label>`;
}

function Filters({ wish, onAsk, hasTenants }) {
  const choose = (name) => (value) => onAsk({ [name]: value });
  return html`<div class="filter-grid">
    <${Field} label="Messages">${(id) => html`<${Choice} id=${id} value=${wish.min_messages} choices=${MESSAGES} onChoose=${choose("min_messages")} />`}<//>
    <${Field} label="Context">${(id) => html`<${Choice} id=${id} value=${wish.context_status} choices=${CONTEXT_CHOICES} onChoose=${choose("context_status")} />`}<//>
    <${Field} label="Model">${(id) => html`<input id=${id} class="input" spellcheck="false" placeholder="any model" value=${wish.model}
      onChange=${(event) => onAsk({ model: event.target.value.trim() })} />`}<//>
    ${hasTenants && html`<${Field} label="Key">${(id) => html`<${KeyChoice} id=${id} value=${wish.key_id} onChoose=${choose("key_id")} />`}<//>`}
    ${DATES.map(([name, label]) => html`<${Field} label=${label}>${(id) => html`<input id=${id} class="input" type="date" value=${wish[name]}
      onChange=${(event) => onAsk({ [name]: event.target.value })} />`}<//>`)}
    <${Pair} wish=${wish} onAsk=${onAsk} />
    ${(hasTenants || wish.tenant) && html`<${Field} label="Tenant">${(id) => html`<input id=${id} class="input" spellcheck="false" placeholder="all" value=${wish.tenant}
      onChange=${(event) => onAsk({ tenant: event.target.value.trim() })} />`}<//>`}
  </div>`;
}

/** A pair of metadata: both names count once they are not typed at any more. */
function Pair({ wish, onAsk }) {
  const [pair, setPair] = useState({ name: wish.name, value: wish.value });
  const typed = `${pair.name}\n${pair.value}`;
  const settled = useSettled(typed, SETTLE_MS);
  useEffect(() => setPair({ name: wish.name, value: wish.value }), [wish.name, wish.value]);
  useEffect(() => {
    if (settled === typed && (pair.name !== wish.name || pair.value !== wish.value)) onAsk(pair);
  }, [settled]);
  return html`
    <${Field} label="Metadata name">${(id) => html`<input id=${id} class="input" maxlength="64" placeholder="topic" value=${pair.name}
      onInput=${(event) => setPair({ ...pair, name: event.target.value })} />`}<//>
    <${Field} label="Metadata value">${(id) => html`<input id=${id} class="input" maxlength="512" placeholder="invoices" value=${pair.value}
      onInput=${(event) => setPair({ ...pair, value: event.target.value })} />`}<//>
  `;
}
return { asked: asked, isFiltered: isFiltered, listQuery: listQuery, FilterBar: FilterBar, Filters: Filters };
})();
const $js_named = (() => { // js/named.js
// What a pasted id names: a request, what the model saw for an answer, a conversation.
const { get: get } = $js_api;
const { shortId: shortId } = $js_format;
const { to: to } = $js_router;
const { isOperator: isOperator } = $js_session;

const ID = /^[A-Za-z0-9][\w.:-]{2,127}$/;

/**
 * @typedef {object} Named
 * @property {string} text
 * @property {string} note
 * @property {string} href
 */

/** @returns {Promise<Named[]>} nothing if the text is no id, or names nothing */
async function lookUp(text, session, signal) {
  if (!ID.test(text) || !session.scopes.includes("read")) return [];
  const { data } = await get("v1/lookup", { id: text }, { signal });
  const named = data.flatMap(({ kind, id, conversation_id: conversation, item_id: item }) => [
    kind === "request" && isOperator(session) && { text: `Request ${shortId(id)}`, note: "its steps in time", href: to(["requests", id]) },
    item && { text: "What the model saw", note: `for the answer in ${shortId(conversation)}`, href: to(["conversations", conversation, "context"], { item }) },
    conversation && { text: `Conversation ${shortId(conversation)}`, note: "its log", href: to(["conversations", conversation]) },
  ]).filter(Boolean);
  return [...new Map(named.map((one) => [one.href, one])).values()];
}
return { lookUp: lookUp };
})();
const $js_pages_conversations_found = (() => { // js/pages/conversations/found.js
// What a search in all conversations found: what an id names, and the best message of each conversation.
const { html: html, useEffect: useEffect, useRef: useRef } = $js_lib;
const { get: get } = $js_api;
const { useLoaded: useLoaded } = $js_load;
const { lookUp: lookUp } = $js_named;
const { to: to } = $js_router;
const { count: count } = $js_format;
const { marked: marked } = $js_ui_marks;
const { Badge: Badge, Empty: Empty, Loaded: Loaded, When: When } = $js_ui_parts;

const MOST = 20;
/** An id of the gateway or of its clients' protocols: nobody looks for its letters in messages. */
const OWN_ID = /^(req|chatcmpl|resp|msg|conv|sum)[_-]\w+$/;

function Found({ words, tenant, session }) {
  const named = useLoaded((signal) => lookUp(words, session, signal), [words]);
  const found = useLoaded((signal) => get("v1/search", { q: words, limit: MOST, "include[]": "title" }, { signal, tenant }), [words, tenant]);
  const box = useRef(null);
  useEffect(() => {
    marked(box.current, words);
    return () => marked(null, "");
  });
  return html`<div ref=${box} class="stack">
    ${named.data?.length > 0 && html`<section class="panel list named" aria-label="By its id"><header><h2>By its id</h2></header><ul class="plain-list">${named.data.map(({ text, note, href }) => html`<li key=${href} class="facts">
      <a href=${href}>${text}</a><span class="small soft">${note}</span></li>`)}</ul></section>`}
    ${!(named.data?.length > 0 && OWN_ID.test(words)) && html`<${Loaded} from=${found} waiting="Searching…">${(told) => html`
      <p class="small soft" role="status">${summed(told)}</p>
      ${told.data.length === 0
        ? !named.data?.length && html`<${Empty}>No message has these words. Words are looked for, not meanings.<//>`
        : html`<ol class="plain-list stack found">${told.data.map(
            (hit) => html`<li key=${hit.id + hit.conversation_id} class="panel hit">
              <p class="row">
                <a class="break" href=${to(["conversations", hit.conversation_id, "log"], { q: words, seq: hit.seq })}>${hit.title ?? "Untitled"}</a>
                <code class="small soft break">${hit.conversation_id}</code>
              </p>
              <p class="break">${hit.text}</p>
              <p class="facts small soft"><${Badge}>${hit.role}<//><span class="number">#${hit.seq}</span><${When} at=${hit.created_at} /></p>
            </li>`,
          )}</ol>`}
    `}<//>`}
  </div>`;
}

function summed(told) {
  const number = told.data.length;
  const said = number === MOST ? `The ${MOST} best conversations` : `${count(number)} ${number === 1 ? "conversation" : "conversations"}`;
  const limits = [
    told.terms.length === 0 && "only small words, which are not looked for",
    !told.complete && "not all messages are searchable yet; search again in a moment",
  ].filter(Boolean);
  return [said, ...limits].join(" · ");
}
return { Found: Found };
})();
const $js_pages_conversations_import = (() => { // js/pages/conversations/import.js
// Conversations from a file: chat messages, an export of ours, or one of the other formats that the gateway reads.
const { html: html, useState: useState } = $js_lib;
const { upload: upload } = $js_api;
const { to: to } = $js_router;
const { count: count } = $js_format;
const { useAction: useAction } = $js_ui_confirm;
const { Button: Button, Dialog: Dialog, Failure: Failure, Field: Field } = $js_ui_parts;

function Import({ onClose, onDone }) {
  const [file, setFile] = useState(null);
  const [told, setTold] = useState(null);
  const { busy, error, run } = useAction(
    async () => upload("v1/conversations/import", await file.text(), { type: "application/json" }),
    (answer) => {
      setTold(answer);
      onDone();
    },
  );
  const footer = told
    ? html`<${Button} kind="primary" onClick=${onClose}>Done<//>`
    : html`<${Button} onClick=${onClose}>Cancel<//>
        <${Button} kind="primary" disabled=${busy || file === null} onClick=${run}>${busy ? "Importing…" : "Import"}<//>`;
  return html`<${Dialog} title="Import conversations" onClose=${onClose} footer=${footer}>
    ${told ? html`<${Taken} told=${told} />` : html`
      <${Field} label="File" hint="JSON or JSON lines: an export of this gateway, chat messages, or a history of another tool.">
        ${(id, hint) => html`<input id=${id} aria-describedby=${hint} class="input" type="file" accept=".json,.jsonl,.ndjson,application/json"
          onChange=${(event) => setFile(event.target.files[0] ?? null)} />`}
      <//>
      <${Failure} error=${error} />`}
  <//>`;
}

function Taken({ told }) {
  return html`<p role="status">${count(told.data.length)} ${told.data.length === 1 ? "conversation was" : "conversations were"} taken in.</p>
    <ul>${told.data.slice(0, 20).map((one) => html`<li><a class="break" href=${to(["conversations", one.id])}>${one.metadata.title ?? one.external_id ?? one.id}</a>
      <span class="small soft"> ${count(one.messages)} messages</span></li>`)}</ul>
    ${told.warnings.length > 0 && html`<div class="notice warn"><ul>${told.warnings.map((warning) => html`<li class="break">${warning}</li>`)}</ul></div>`}`;
}
return { Import: Import };
})();
const $js_pages_conversations_families = (() => { // js/pages/conversations/families.js
// Branches below the conversations that they left, and many short conversations as one row.

/** As many conversations of one exchange, one after the other, are shown as one row where there are longer ones. */
const FOLDED_RUN = 5;
const MESSAGES_OF_ONE_EXCHANGE = 3;

/** More branches than this are shown once they are asked for. */
const SHOWN_BRANCHES = 3;

/**
 * The rows of a list, each branch below its parent. A family stands where the first of it stood. A branch whose parent is
 * not among the rows stands for itself.
 * @param {object[]} records  of the list, each with `id` and `parent`
 * @param {Map<string, boolean>} toggled  by id of a parent, what somebody chose: whether its branches are shown
 * @returns {{record: object, depth: number, branches: number, isOpen: boolean}[]}
 */
function arrangeFamilies(records, toggled) {
  const byId = new Map(records.map((record) => [record.id, record]));
  const children = new Map();
  for (const record of records) {
    const parent = parentOf(record, byId);
    if (parent) children.set(parent.id, [...(children.get(parent.id) ?? []), record]);
  }
  const rows = [];
  const add = (record, depth) => {
    const branches = children.get(record.id) ?? [];
    const isOpen = toggled.get(record.id) ?? branches.length <= SHOWN_BRANCHES;
    rows.push({ record, depth, branches: branches.length, isOpen });
    if (isOpen) branches.forEach((branch) => add(branch, depth + 1));
  };
  const begun = new Set();
  for (const record of records) {
    let first = record;
    for (let parent = parentOf(first, byId); parent; parent = parentOf(parent, byId)) first = parent;
    if (!begun.has(first.id)) add(first, 0);
    begun.add(first.id);
  }
  return rows;
}

const parentOf = (record, byId) => (record.parent ? byId.get(record.parent.conversation_id) : undefined);

/**
 * The same rows, with each long run of conversations of one exchange as one row before them, and its rows only if it is open.
 * @param {object[]} rows  of `arrangeFamilies`
 * @param {Set<string>} opened  the ids of conversations with which open runs begin
 */
function foldShortRuns(rows, opened) {
  if (rows.every(isShort)) return rows;
  const shown = [];
  for (let at = 0; at < rows.length; ) {
    let end = at;
    while (end < rows.length && isShort(rows[end])) end += 1;
    const run = rows.slice(at, Math.max(end, at + 1));
    const first = run[0].record.id;
    if (run.length >= FOLDED_RUN) shown.push({ run, id: first, isOpen: opened.has(first) });
    if (run.length < FOLDED_RUN || opened.has(first)) shown.push(...run);
    at += run.length;
  }
  return shown;
}

/** One question and its answer, at most with an instruction, which nobody gave a title. */
const isShort = ({ record, depth, branches }) =>
  depth + branches === 0 && record.messages > 0 && record.messages <= MESSAGES_OF_ONE_EXCHANGE && !record.parent && !record.metadata.title;
return { arrangeFamilies: arrangeFamilies, foldShortRuns: foldShortRuns };
})();
const $js_pages_conversations_first_steps = (() => { // js/pages/conversations/first_steps.js
// What to do where nothing was said yet: point a client here.
const { html: html } = $js_lib;
const { ROOT: ROOT } = $js_api;
const { credentials: credentials } = $js_session;
const { Copy: Copy } = $js_ui_parts;

function FirstSteps({ session }) {
  const base = new URL("v1", ROOT).href;
  const hasKeys = session.auth_mode === "keys";
  const isAnonymous = !hasKeys && !credentials().key;
  const model = session.simulated ? "sim-8k" : "gpt-4o-mini";
  const shell = `curl ${base}/chat/completions \\
  -H 'Content-Type: application/json' -H 'X-Conversation-Id: my-first' \\${isAnonymous ? "" : `
  -H "Authorization: Bearer $KEY" \\`}
  -d '{"model": "${model}", "messages": [{"role": "user", "content": "Hello"}]}'`;
  const python = `from openai import OpenAI

client = OpenAI(base_url="${base}", api_key=${isAnonymous ? '"sk-anything"' : "KEY"})`;
  return html`<section class="panel stack first-steps" aria-label="First steps">
    <h2>Nothing was said here yet</h2>
    <p>Any client of the OpenAI API works: give it this address, and what it says is kept and shown here.</p>
    <p class="row"><code class="break">${base}</code><${Copy} text=${base} label="Copy address" /></p>
    <${Sample} label="In a shell" text=${shell} />
    <${Sample} label="In Python" text=${python} />
    ${isAnonymous
      ? html`<p>You look without a key, and see what was said without one. Each key that a client sends has conversations of its own: after the
          lines in Python, look with <code>sk-anything</code> by “Change key”.</p>`
      : session.operator
        ? html`<p>You look as an operator and see the conversations of all keys. <code>KEY</code> is a key for the client: ${hasKeys ? html`make one under <a href="#/keys">Keys</a>` : "any will do"}.</p>`
        : html`<p><code>KEY</code> is the key that you look with: another one has conversations of its own.</p>`}
    ${session.scopes.includes("chat") && html`<p>Or begin with <a href="#/chat">a chat in this console</a>.</p>`}
  </section>`;
}

function Sample({ label, text }) {
  return html`<div><p class="row"><strong class="small grow">${label}</strong><${Copy} text=${text} name=${`Copy: ${label}`} /></p>
    <pre class="plain" tabindex="0">${text}</pre></div>`;
}
return { FirstSteps: FirstSteps };
})();
const $js_pages_conversations_list = (() => { // js/pages/conversations/list.js
// Conversations page by page.
const { html: html, useCallback: useCallback, useEffect: useEffect, useRef: useRef, useState: useState } = $js_lib;
const { get: get } = $js_api;
const { to: to } = $js_router;
const { count: count, nameTenant: nameTenant, shortId: shortId } = $js_format;
const { Badge: Badge, Button: Button, Empty: Empty, Failure: Failure, Loading: Loading, Status: Status, When: When } = $js_ui_parts;
const { DeleteConversation: DeleteConversation } = $js_pages_conversation_head;
const { mayManage: mayManage } = $js_pages_conversation_place;
const { arrangeFamilies: arrangeFamilies, foldShortRuns: foldShortRuns } = $js_pages_conversations_families;
const { listQuery: listQuery } = $js_pages_conversations_filters;
const { FirstSteps: FirstSteps } = $js_pages_conversations_first_steps;

const PAGE = 50;
const CLAMPED_CHARS = 40;
const SHOWN_PAIRS = 2;
const SHOWN_TITLES = 6;
/** Of the table, without those that not everybody sees. */
const COLUMNS = 8;
const SHOWN_FIELDS = ["title", "last_answer"];

function List({ wish, session, isFiltered, onClear, onAsk }) {
  const list = usePages(listQuery(wish), wish.tenant);
  const [deleting, setDeleting] = useState(null);
  const [toggled, setToggled] = useState(new Map());
  const [opened, setOpened] = useState(new Set());
  const table = useRef(null);
  const more = async () => {
    const before = new Set(list.rows.map((one) => one.id));
    await list.more();
    requestAnimationFrame(() => [...(table.current?.querySelectorAll("tbody tr[data-id]") ?? [])].find((row) => !before.has(row.dataset.id))?.querySelector("a.title").focus());
  };
  if (list.rows === null) return list.error ? html`<${Failure} error=${list.error} retry=${list.reload} />` : html`<${Loading} />`;
  if (list.rows.length === 0 && list.error === null) {
    return isFiltered
      ? html`<${Empty}><p>No conversation is like that.</p><p><${Button} onClick=${onClear}>Clear the filters<//></p><//>`
      : html`<${FirstSteps} session=${session} />`;
  }
  const manages = mayManage(session);
  const hasTenants = list.rows.some((one) => one.tenant);
  return html`<div class="panel list" ref=${table} aria-busy=${list.loading}>
    <table class="data conversations">
      <caption class="visually-hidden">Conversations</caption>
      <thead><tr><th scope="col">Conversation</th>${hasTenants && html`<th scope="col" class="wide">Tenant</th>`}<th scope="col" class="wide">Model</th><th scope="col" class="wide">Status</th>
        <th scope="col" class="number wide">Messages</th><th scope="col" class="number wide">Tokens</th>
        <th scope="col" class="number wide">Summaries</th><th scope="col" class="number wide">Created</th><th scope="col" class="number wide">Updated</th>
        ${manages && html`<th scope="col" class="wide"><span class="visually-hidden">Actions</span></th>`}</tr></thead>
      <tbody>${foldShortRuns(arrangeFamilies(list.rows, toggled), opened).map((row) => row.run ? html`<${ShortRun} key=${`run ${row.id}`} ...${row} columns=${COLUMNS + manages + hasTenants}
        onToggle=${() => setOpened(new Set(row.isOpen ? [...opened].filter((id) => id !== row.id) : [...opened, row.id]))} />` : html`<${Row} key=${row.record.id} ...${row} manages=${manages} hasTenants=${hasTenants}
        onDelete=${setDeleting} onTenant=${(tenant) => onAsk({ tenant })} onToggle=${() => setToggled(new Map(toggled).set(row.record.id, !row.isOpen))} />`)}</tbody>
    </table>
    <${Failure} error=${list.error} retry=${list.more} />
    <div class="row list-end">
      <span class="small soft number grow" role="status">${told(list)}</span>
      ${list.hasMore && html`<${Button} disabled=${list.loading} onClick=${more}>${list.loading ? "Loading…" : "Load more"}<//>`}
    </div>
    ${deleting && html`<${DeleteConversation} record=${deleting} title=${deleting.title} onClose=${() => setDeleting(null)}
      onDeleted=${() => { list.remove(deleting.id); setDeleting(null); }} />`}
  </div>`;
}

/** A row that stands for many conversations of one exchange. */
function ShortRun({ run, isOpen, columns, onToggle }) {
  const titles = run.map(({ record }) => record.title ?? record.external_id ?? "Untitled");
  return html`<tr class="short-run"><td class="name"><div class="name-line"><button type="button" class="twig" aria-expanded=${isOpen} onClick=${onToggle}>
    <span aria-hidden="true">${isOpen ? "▾" : "▸"}</span> ${count(run.length)} conversations of one exchange</button>
    ${!isOpen && html`<span class="small soft run-titles">${[...new Set(titles)].slice(0, SHOWN_TITLES).join(" · ")}</span>`}</div></td><td class="wide" colspan=${columns - 1}></td></tr>`;
}

function told({ rows, hasMore }) {
  if (hasMore) return `The first ${count(rows.length)} conversations`;
  return rows.length === 1 ? "1 conversation" : `${count(rows.length)} conversations`;
}

function Row({ record, depth, branches, isOpen, manages, hasTenants, onDelete, onTenant, onToggle }) {
  const name = record.title ?? record.external_id ?? "Untitled";
  const model = record.last_answer?.model;
  return html`<tr data-id=${record.id} class=${depth > 0 ? "branched" : ""}>
    <td class="name"><div class="name-line" style=${{ "--depth": depth }}>
      <a class="title" title=${name.length > CLAMPED_CHARS ? name : undefined} href=${to(["conversations", record.id])}>${name}</a>
      ${branches > 0 && html`<button type="button" class="twig" aria-expanded=${isOpen} aria-label=${`${branches} ${branches === 1 ? "branch" : "branches"} of ${name}`}
        onClick=${onToggle}><span aria-hidden="true">${isOpen ? "▾" : "▸"}</span> ${count(branches)} ${branches === 1 ? "branch" : "branches"}</button>`}
      ${record.parent && (depth > 0 ? html`<span class="visually-hidden">branch</span>`
        : html`<a class="small" href=${to(["conversations", record.parent.conversation_id])}>branch of <code>${shortId(record.parent.conversation_id)}</code></a>`)}
      <code class="wide small soft" title=${record.id}>${record.external_id ?? shortId(record.id)}</code>
      ${Object.entries(record.metadata).filter(([key]) => key !== "title").slice(0, SHOWN_PAIRS).map(
        ([key, value]) => html`<span class="wide pair small soft">${key}: ${value}</span>`)}
      <span class="narrow facts small soft number"><${LastStatus} of=${record} /><span class="model">${model}</span>
        <span>${count(record.messages)} messages</span><${When} at=${record.updated_at} isShort /></span>
    </div></td>
    ${hasTenants && html`<td class="wide"><button type="button" class="tenant" title=${`Only tenant ${record.tenant}`} onClick=${() => onTenant(record.tenant)}><span>${nameTenant(record)}</span></button></td>`}
    <td class="wide model" title=${model}>${model ?? html`<span class="soft">–</span>`}</td>
    <td class="wide"><${LastStatus} of=${record} /></td>
    <td class="number wide">${count(record.messages)}</td>
    <td class="number wide">${count(record.tokens)}</td>
    <td class="number wide">${record.summaries ? count(record.summaries) : html`<span class="soft">–</span>`}</td>
    <td class="number wide"><${When} at=${record.created_at} isShort /></td>
    <td class="number wide"><${When} at=${record.updated_at} isShort /></td>
    ${manages && html`<td class="number wide"><${Button} small kind="plain" aria-label=${`Delete ${name}…`} onClick=${() => onDelete(record)}>Delete…<//></td>`}
  </tr>`;
}

/** How the newest message fared: no answer yet, an answer that broke off, or what the model saw for it. */
function LastStatus({ of: { last_answer: answer, unanswered } }) {
  if (unanswered > 0) return html`<${Badge} kind="warn" title="The newest message has no answer: a request is running, or it failed">no answer<//>`;
  if (answer?.incomplete) return html`<${Badge} kind="warn" title="The answer is not whole: its client or its provider went away">broke off<//>`;
  if (answer?.context_status === "full") return html`<span class="soft" title="The model saw everything word for word">full</span>`;
  if (answer?.context_status) return html`<${Status} of=${answer.context_status} />`;
  return html`<span class="soft">–</span>`;
}

/** A conversation that became active meanwhile is on two pages. */
function joined(before, rows) {
  const known = new Set(before.map((one) => one.id));
  return [...before, ...rows.filter((one) => !known.has(one.id))];
}

/** Pages one after the other; another question begins anew, and what was there stays until its answer comes. */
function usePages(query, tenant) {
  const [state, setState] = useState({ rows: null, hasMore: false, loading: true, error: null });
  const [round, setRound] = useState(0);
  const asked = JSON.stringify({ query, tenant });
  const newest = useRef(null);
  const load = useCallback(async (after, before) => {
    const leaving = new AbortController();
    newest.current?.abort();
    newest.current = leaving;
    setState((was) => ({ ...was, loading: true }));
    try {
      const told = await get("v1/conversations", { ...query, limit: PAGE, after, "include[]": SHOWN_FIELDS }, { signal: leaving.signal, tenant });
      if (newest.current === leaving) setState({ rows: joined(before, told.data), hasMore: told.has_more, loading: false, error: null });
    } catch (error) {
      if (newest.current === leaving) setState((was) => ({ ...was, loading: false, error }));
    }
  }, [asked]);
  useEffect(() => {
    load(null, []);
    return () => newest.current?.abort();
  }, [asked, round]);
  return {
    ...state,
    more: () => load(state.rows.at(-1)?.id, state.rows),
    reload: () => setRound((before) => before + 1),
    remove: (id) => setState((was) => ({ ...was, rows: was.rows.filter((one) => one.id !== id) })),
  };
}
return { List: List };
})();
const $js_pages_conversations = (() => { // js/pages/conversations.js
// The list of conversations, with search and filters. All of what is asked for is in the address.
const { html: html, useEffect: useEffect, useState: useState } = $js_lib;
const { useCommands: useCommands } = $js_commands;
const { useSettled: useSettled } = $js_load;
const { go: go } = $js_router;
const { credentials: credentials, hasLinkToken: hasLinkToken } = $js_session;
const { Button: Button } = $js_ui_parts;
const { OldLink: OldLink } = $js_pages_operation_access;
const { mayManage: mayManage } = $js_pages_conversation_place;
const { FilterBar: FilterBar, Filters: Filters, asked: asked, isFiltered: isFiltered } = $js_pages_conversations_filters;
const { Found: Found } = $js_pages_conversations_found;
const { Import: Import } = $js_pages_conversations_import;
const { List: List } = $js_pages_conversations_list;

const SETTLE_MS = 300;

function Conversations({ route, session }) {
  const wish = asked(route.query);
  const [round, setRound] = useState(0);
  const [isImporting, setImporting] = useState(false);
  const [isOpen, setOpen] = useState(isFiltered(wish));
  const isOperator = Boolean(session.operator);
  const manages = mayManage(session);
  useCommands([manages && { text: "Import conversations…", run: () => setImporting(true) }]);
  const ask = (changed) => go(["conversations"], { ...wish, ...changed }, { replace: true });
  return html`
    <div class="page-head">
      <h1 tabindex="-1">Conversations</h1>
      ${manages && html`<${Button} onClick=${() => setImporting(true)}>Import…<//>`}
      ${session.scopes.includes("chat") && html`<a class="button primary" href="#/chat">New chat</a>`}
    </div>
    ${hasLinkToken() && !isOperator && html`<${OldLink} />`}
    <div class="list-tools stack">
      <div class="row">
        <${Search} words=${wish.q} onAsk=${(q) => ask({ q })} />
        ${!wish.q && html`<${FilterBar} wish=${wish} isOpen=${isOpen} onOpen=${() => setOpen(!isOpen)} onAsk=${ask} />`}
      </div>
      ${!wish.q && isOpen && html`<${Filters} wish=${wish} onAsk=${ask} hasTenants=${isOperator} />`}
    </div>
    ${wish.q
      ? html`<${Found} words=${wish.q} tenant=${wish.tenant} session=${session} />`
      : html`<${List} key=${round} wish=${wish} session=${session} isFiltered=${isFiltered(wish)} onClear=${() => go(["conversations"])} onAsk=${ask} />`}
    ${!credentials().key && !isOperator && html`<p class="small soft">These are the conversations without a key. The link in the gateway’s start line shows all of them.</p>`}
    ${isImporting && html`<${Import} onClose=${() => setImporting(false)} onDone=${() => setRound((before) => before + 1)} />`}
  `;
}

function Search({ words, onAsk }) {
  const [typed, setTyped] = useState(words);
  const settled = useSettled(typed.trim(), SETTLE_MS);
  useEffect(() => setTyped((before) => (before.trim() === words ? before : words)), [words]);
  useEffect(() => {
    if (settled !== words && settled === typed.trim()) onAsk(settled);
  }, [settled]);
  return html`<form class="row grow" role="search" onSubmit=${(event) => { event.preventDefault(); onAsk(typed.trim()); }}>
    <input class="input grow" type="search" aria-label="Search in all conversations" placeholder="Words that were said, or an id: req_…, chatcmpl-…, conv_…, a client’s own"
      value=${typed} onInput=${(event) => setTyped(event.target.value)} />
    <${Button} type="submit" kind="primary">Search<//>
  </form>`;
}
return { Conversations: Conversations };
})();
const $js_ui_choices = (() => { // js/ui/choices.js
// One of a few, side by side.
const { html: html } = $js_lib;

/** @param {{label: string, of: Record<string, string>, chosen: string, onChoose: (name: string) => void}} props */
function Choices({ label, of, chosen, onChoose }) {
  return html`<span class="segments" role="group" aria-label=${label}>${Object.entries(of).map(([name, text]) => html`<button type="button" key=${name} class="choice"
    aria-pressed=${name === chosen} onClick=${() => onChoose(name)}>${text}</button>`)}</span>`;
}
return { Choices: Choices };
})();
const $js_pages_costs_spend = (() => { // js/pages/costs/spend.js
// What was spent on each day: a bar, split by who or what cost most.
const { html: html, useMemo: useMemo } = $js_lib;
const { dollars: dollars } = $js_format;
const { Chart: Chart } = $js_ui_chart;

const SHOWN = 4;
const COLORS = ["--chart-1", "--chart-2", "--chart-3", "--chart-4", "--chart-5"];
const DAY_SECONDS = 86_400;
const dayName = new Intl.DateTimeFormat("en", { day: "numeric", month: "short", timeZone: "UTC" });

/**
 * @param {object} props
 * @param {object} props.of  `since`, sums as `data`, of each day as `days`, and of both as `daily`
 * @param {(row: object) => string} props.nameOf
 */
function Spend({ of: { since, data, days, daily }, nameOf }) {
  const dates = useMemo(() => datesSince(since), [since]);
  const lines = useMemo(() => stacked(dates, data, days, daily, nameOf), [dates, data, days, daily]);
  const name = (at) => (dates[at] ? dayName.format(new Date(dates[at])) : "");
  return html`<section class="panel"><h2>Spent by day</h2><${Chart} label="What was spent on each day" x=${dates.map((_, at) => at)} xLabel="Day" lines=${lines} height=${220}
    least=${0.001} formatX=${name} formatTick=${name} formatY=${dollars} /></section>`;
}

/** The days from a moment until today, such as `2026-11-03`. */
function datesSince(since) {
  const count = Math.floor(Date.now() / 1000 / DAY_SECONDS) - Math.floor(since / DAY_SECONDS) + 1;
  return Array.from({ length: count }, (_, at) => new Date((since + at * DAY_SECONDS) * 1000).toISOString().slice(0, 10));
}

/** Lines over each other: those that cost most, then all others, so that the highest reaches what was spent in all. */
function stacked(dates, data, days, daily, nameOf) {
  const idOf = (row) => JSON.stringify([row.tenant, row.key_id, row.model]);
  const costs = new Map();
  for (const row of daily) costs.set(`${idOf(row)} ${row.day}`, row.cost_usd ?? 0);
  const totals = new Map(days.map((row) => [row.day, row.cost_usd ?? 0]));
  const chosen = data.slice(0, SHOWN).map((row) => ({ label: nameOf(row), told: dates.map((date) => costs.get(`${idOf(row)} ${date}`) ?? 0) }));
  const rest = dates.map((date, at) => Math.max(0, (totals.get(date) ?? 0) - chosen.reduce((sum, one) => sum + one.told[at], 0)));
  if (data.length > SHOWN) chosen.push({ label: "all others", told: rest });
  return chosen.map((one, number) => ({
    ...one,
    label: chosen.findIndex((other) => other.label === one.label) === number ? one.label : `${one.label} (${number + 1})`,
    values: dates.map((_, at) => chosen.slice(number).reduce((sum, other) => sum + other.told[at], 0)),
    color: COLORS[number],
    bars: true,
    format: dollars,
  }));
}
return { Spend: Spend };
})();
const $js_pages_costs_budgets = (() => { // js/pages/costs/budgets.js
// What is left of budgets, and what a month will have cost if it goes on as it began.
const { html: html } = $js_lib;
const { dollars: dollars } = $js_format;
const { to: to } = $js_router;
const { Badge: Badge } = $js_ui_parts;

const DAY_MS = 86_400_000;
/** Of a budget: from here on the bar warns. */
const WARNS_ABOVE = 0.8;

function Budgets({ keys }) {
  if (!keys.length) return html`<p class="soft small">No key has a budget. <a href=${to(["keys"])}>Make one with a budget</a> to limit what a team spends in a month.</p>`;
  return html`<section class="panel list"><header><h2>Budgets of this month</h2></header><ul class="plain-list budgets">${keys.map((key) => html`<${Budget} key=${key.id} of=${key} />`)}</ul></section>`;
}

/** @param {{of: {key_name: string|null, budget_usd: number|null, spent_usd: number}}} props */
function OwnBudget({ of: { key_name: name, budget_usd: budget, spent_usd: spent } }) {
  if (budget === null) return html`<p class="soft small">${dollars(spent)} were spent this month${name && html` with the key <strong>${name}</strong>, which has no budget`}.</p>`;
  return html`<section class="panel list"><header><h2>Budget of this month</h2></header><ul class="plain-list budgets"><${Budget} of=${{ name, budget_usd: budget, spent_usd: spent }} /></ul></section>`;
}

function Budget({ of: { name, hint, budget_usd: budget, spent_usd: spent = 0 } }) {
  const part = budget ? spent / budget : 1;
  const expected = forecast(spent);
  const isTooMuch = expected !== null && expected > budget;
  return html`<li>
    <p class="facts"><strong class="break">${name}</strong>${hint && html`<code class="soft">${hint}</code>`}<span class="number">${dollars(spent)} <span class="soft">of ${dollars(budget)}</span></span>
      ${part >= 1 ? html`<${Badge} kind="bad">refused until next month<//>` : isTooMuch && html`<${Badge} kind="warn">will not last<//>`}</p>
    <div class="track" role="meter" aria-label="Spent by ${name}" aria-valuemin="0" aria-valuemax=${budget} aria-valuenow=${spent} aria-valuetext="${dollars(spent)} of ${dollars(budget)}">
      <div class="fill ${part >= 1 ? "bad" : part > WARNS_ABOVE ? "warn" : ""}" style=${{ width: `${Math.min(100, 100 * part)}%` }}></div>
      ${expected !== null && !isTooMuch && html`<span class="expected" style=${{ left: `${(100 * expected) / budget}%` }}></span>`}</div>
    <p class="small soft">${expected === null ? "A forecast needs the month’s first day." : `About ${dollars(expected)} at the end of the month, if it goes on like this.`}</p>
  </li>`;
}

/** What a month will have cost at the same pace; null on its first day. */
function forecast(spent, now = new Date()) {
  const begin = Date.UTC(now.getUTCFullYear(), now.getUTCMonth(), 1);
  const elapsed = now - begin;
  return elapsed < DAY_MS ? null : (spent * (Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + 1, 1) - begin)) / elapsed;
}
return { Budgets: Budgets, OwnBudget: OwnBudget, forecast: forecast };
})();
const $js_pages_costs = (() => { // js/pages/costs.js
// What tenants, keys and models cost, by day, and what is left of budgets: for an operator of all, else of the own key.
const { html: html } = $js_lib;
const { get: get } = $js_api;
const { count: count, dollars: dollars, nameTenant: nameTenant, percent: percent, short: short } = $js_format;
const { useLoaded: useLoaded } = $js_load;
const { go: go, to: to } = $js_router;
const { isOperator: isOperator } = $js_session;
const { Choices: Choices } = $js_ui_choices;
const { Empty: Empty, Loading: Loading } = $js_ui_parts;
const { Spend: Spend } = $js_pages_costs_spend;
const { Budgets: Budgets, OwnBudget: OwnBudget } = $js_pages_costs_budgets;
const { NotShown: NotShown, Outdated: Outdated } = $js_pages_operation_access;
const { readAllKeys: readAllKeys } = $js_pages_operation_keys;

const DAY_SECONDS = 86_400;
const BY = { key: "Keys", tenant: "Tenants", model: "Models" };
const RANGES = { today: "Today", week: "7 days", month: "This month", quarter: "90 days" };
const DAYS = { today: 1, week: 7, quarter: 90 };
const COLUMNS = [["cost_usd", "Cost"], ["requests", "Requests"], ["prompt_tokens", "Prompt"], ["cached_tokens", "Cached"], ["completion_tokens", "Answers"]];

function Costs({ route, session }) {
  const isAll = isOperator(session);
  const by = isAll && route.query.get("by") in BY ? route.query.get("by") : isAll ? "key" : "model";
  const range = route.query.get("range") in RANGES ? route.query.get("range") : "month";
  const sort = COLUMNS.some(([name]) => name === route.query.get("sort")) ? route.query.get("sort") : "cost_usd";
  const ask = (changed) => go(["costs"], { by, range, sort, ...changed }, { replace: true });
  const costs = useLoaded(async (signal) => {
    const read = (query) => get(isAll ? "v1/admin/costs" : "v1/costs", { since: beginOf(range), ...query }, { signal });
    const [sums, days, daily, keys] = await Promise.all([read({ by }), read({ by: "day" }), read({ by, daily: true }), isAll ? readBudgets(signal) : null]);
    return { ...sums, by, days: days.data, daily: daily.data, budgets: keys };
  }, [by, range, isAll]);
  const { data, error } = costs;
  return html`
    <div class="page-head"><h1 tabindex="-1">Costs</h1><span class="page-facts small soft">${data && html`<strong class="number">${dollars(totalOf(data.days))}</strong> in all · `}${isAll ? "" : "Of your requests. "}Days are those of UTC</span></div>
    ${error && !data ? html`<${NotShown} error=${error} what="costs" retry=${costs.reload} />` : html`
      <div class="request-filters wrapping" role="group" aria-label="What to add up">
        ${isAll && html`<${Choices} label="By" of=${BY} chosen=${by} onChoose=${(one) => ask({ by: one })} />`}
        <${Choices} label="Since" of=${RANGES} chosen=${range} onChoose=${(one) => ask({ range: one })} />
      </div>
      ${error && html`<${Outdated} error=${error} />`}
      ${data === null ? html`<${Loading}>Adding up…<//>` : html`<div class="stack">
        ${range !== "today" && data.data.length > 0 && html`<${Spend} of=${data} nameOf=${(row) => nameText(row, data.by)} />`}
        <${Table} rows=${data.data} by=${data.by} sort=${sort} hasMore=${data.has_more} onSort=${(one) => ask({ sort: one })} />
        ${isAll ? html`<${Budgets} keys=${data.budgets} />` : html`<${OwnBudget} of=${data} />`}</div>`}`}
  `;
}

/** Unix seconds of the first day of a range, in UTC. */
const totalOf = (days) => days.reduce((sum, day) => sum + (day.cost_usd ?? 0), 0);

function beginOf(range) {
  const now = new Date();
  if (range === "month") return Date.UTC(now.getUTCFullYear(), now.getUTCMonth(), 1) / 1000;
  return Date.UTC(now.getUTCFullYear(), now.getUTCMonth(), now.getUTCDate()) / 1000 - (DAYS[range] - 1) * DAY_SECONDS;
}

const readBudgets = async (signal) => (await readAllKeys(signal)).filter((key) => typeof key.budget_usd === "number" && !key.revoked_at);

function Table({ rows, by, sort, hasMore, onSort }) {
  if (!rows.length) return html`<div class="panel"><${Empty}><p>Nothing was asked in this time.</p><p>Each call of a model adds to these sums, summaries too.</p><//></div>`;
  const sorted = [...rows].sort((one, other) => (other[sort] ?? -1) - (one[sort] ?? -1));
  const most = Math.max(...sorted.map((row) => row[sort] ?? 0), 0);
  const unpriced = rows.reduce((sum, row) => sum + (row.unpriced_calls ?? 0), 0);
  return html`<div class="panel list"><div class="scroll-x" tabindex="0" role="region" aria-label="Costs"><table class="data costs">
    <thead><tr><th scope="col">${BY[by].slice(0, -1)}</th><th scope="col" class="share-cell"><span class="visually-hidden">Share</span></th>
      ${COLUMNS.map(([name, text]) => html`<th scope="col" class="number" aria-sort=${name === sort ? "descending" : undefined} key=${name}>
        <button type="button" class="sort" onClick=${() => onSort(name)}>${text}${name === sort ? " ↓" : ""}</button></th>`)}</tr></thead>
    <tbody>${sorted.map((row) => html`<tr key=${[row.tenant, row.key_id, row.model].join(" ")}>
      <th scope="row" class="break">${nameOf(row, by)}</th>
      <td class="share-cell"><span class="share" style=${{ width: `${most ? (100 * (row[sort] ?? 0)) / most : 0}%` }}></span></td>
      <td class="number">${dollars(row.cost_usd)}${row.unpriced_calls > 0 && html` <span class="soft" title="${count(row.unpriced_calls)} calls have no known price">+ ?</span>`}</td>
      <td class="number">${count(row.requests)}</td><td class="number" title=${count(row.prompt_tokens)}>${short(row.prompt_tokens)}</td>
      <td class="number soft">${percent(row.cached_tokens, row.prompt_tokens)}</td><td class="number" title=${count(row.completion_tokens)}>${short(row.completion_tokens)}</td>
    </tr>`)}</tbody></table></div>
    ${(hasMore || unpriced > 0) && html`<p class="small soft list-note">${hasMore && "Only the highest are shown. "}${unpriced > 0 && html`${count(unpriced)} calls have no known price: set <code>models.NAME.price</code>.`}</p>`}
  </div>`;
}

function nameOf(row, by) {
  if (by === "model") return row.model ?? "–";
  const tenant = row.tenant ? html`<a class="quiet" href=${to(["requests"], { tenant: row.tenant })} title="Requests of ${row.tenant}">${nameTenant(row)}</a>` : html`<span class="soft">no tenant</span>`;
  if (by === "tenant") return tenant;
  const key = row.key_id ? html`<a class="quiet" href=${to(["requests"], { key_id: row.key_id })} title="Requests with ${row.key_id}">${row.key_name ?? row.key_id}</a>` : html`<span class="soft">no key</span>`;
  const isNamedAlike = row.tenant && nameTenant(row) === row.key_name;
  return html`${key}${!isNamedAlike && html` <span class="soft small">${tenant}</span>`}`;
}

/** The same as text. */
function nameText(row, by) {
  if (by === "model") return row.model ?? "–";
  const tenant = row.tenant ? nameTenant(row) : "no tenant";
  if (by === "tenant") return tenant;
  const key = row.key_name ?? row.key_id ?? "no key";
  return tenant === key ? key : `${key}, ${tenant}`;
}
return { Costs: Costs };
})();
const $js_pages_keys_make = (() => { // js/pages/keys/make.js
// A new key: what it may do, and then the key itself, which is shown once.
const { html: html, useId: useId, useState: useState } = $js_lib;
const { send: send } = $js_api;
const { moment: moment } = $js_format;
const { useAction: useAction } = $js_ui_confirm;
const { Button: Button, Copy: Copy, Dialog: Dialog, Failure: Failure, Field: Field } = $js_ui_parts;

const SCOPES = {
  chat: "ask models",
  read: "see its conversations",
  manage: "change and erase them",
  admin: "operate the gateway: sees all tenants, makes keys",
};
const BEGUN_WITH = { name: "", tenant: "", scopes: ["chat", "read", "manage"], policy: "", models: "", expires: "", budget: "", retention: "" };

/**
 * @param {object} props
 * @param {string[]} props.tenants  those that have a key already
 * @param {() => void} props.onMade
 * @param {() => void} props.onClose
 */
function MakeKey({ session, tenants, onMade, onClose }) {
  const [wish, setWish] = useState(BEGUN_WITH);
  const [made, setMade] = useState(null);
  const { busy, error, run } = useAction(
    () => send("POST", "v1/admin/keys", bodyOf(wish)),
    (key) => {
      setMade(key);
      onMade();
    },
  );
  const id = useId();
  const change = (part) => setWish((before) => ({ ...before, ...part }));
  if (made) return html`<${Made} key="made" record=${made} onClose=${onClose} />`;
  const isReady = wish.name.trim() !== "" && wish.scopes.length > 0;
  const submit = (event) => {
    event.preventDefault();
    if (isReady && !busy) run();
  };
  return html`<${Dialog} key="form" title="Make a key" onClose=${onClose} footer=${html`<${Button} onClick=${onClose}>Cancel<//>
    <${Button} kind="primary" type="submit" form=${id} disabled=${!isReady || busy}>${busy ? "Making…" : "Make the key"}<//>`}>
    <form id=${id} class="stack" onSubmit=${submit}>
      <${Text} name="name" label="Name" hint="Who or what uses it: shop, staging, Ann." wish=${wish} onChange=${change} maxlength="100" required />
      <${Scopes} of=${wish.scopes} onChange=${change} />
      <${Text} name="tenant" label="Tenant" hint="Keys of one tenant see the same conversations. Left empty: a tenant of its own." wish=${wish} onChange=${change} list="${id}-tenants" />
      <datalist id="${id}-tenants">${tenants.map((tenant) => html`<option value=${tenant} />`)}</datalist>
      <${Text} name="models" label="Models" hint="Names with commas between them; * and ? stand for any letters. Left empty: all." wish=${wish} onChange=${change} placeholder="gpt-*, small" />
      <div class="key-fields">
        <${Text} name="budget" label="Budget, $ a month" type="number" min="0" step="any" wish=${wish} onChange=${change} placeholder="none" />
        <${Text} name="expires" label="Expires on" type="date" wish=${wish} onChange=${change} />
        <${Text} name="retention" label="Erase after days at rest" type="number" min="1" max="36500" step="1" wish=${wish} onChange=${change} placeholder="never" />
        <${Field} label="Policy">${(field) => html`<select id=${field} class="input" value=${wish.policy} onChange=${(event) => change({ policy: event.target.value })}>
          <option value="">default</option>${(session.policies ?? []).map((policy) => html`<option value=${policy}>${policy}</option>`)}</select>`}<//>
      </div>
      <${Failure} error=${error} />
    </form>
  <//>`;
}

function Text({ name, label, hint, wish, onChange, ...rest }) {
  return html`<${Field} label=${label} hint=${hint}>${(id, hintId) => html`<input id=${id} aria-describedby=${hintId} class="input" autocomplete="off" spellcheck="false"
    value=${wish[name]} onInput=${(event) => onChange({ [name]: event.target.value })} ...${rest} />`}<//>`;
}

function Scopes({ of, onChange }) {
  const toggle = (scope) => onChange({ scopes: of.includes(scope) ? of.filter((one) => one !== scope) : [...of, scope] });
  return html`<fieldset class="choices stack"><legend class="small"><strong>Scopes</strong></legend>
    ${Object.entries(SCOPES).map(([scope, words]) => html`<label class="row"><input type="checkbox" checked=${of.includes(scope)} onChange=${() => toggle(scope)} />
      <span><code>${scope}</code> <span class="soft small">${words}</span></span></label>`)}
  </fieldset>`;
}

/** What `POST /v1/admin/keys` takes; what is empty is left out. A key expires at the end of the day that was chosen. */
function bodyOf(wish) {
  const body = { name: wish.name.trim(), scopes: Object.keys(SCOPES).filter((scope) => wish.scopes.includes(scope)) };
  const models = wish.models.split(",").map((name) => name.trim()).filter(Boolean);
  const end = wish.expires ? new Date(`${wish.expires}T00:00`) : null;
  end?.setDate(end.getDate() + 1);
  return {
    ...body,
    tenant: wish.tenant.trim() || undefined,
    policy: wish.policy || undefined,
    models: models.length ? models : undefined,
    expires_at: end ? Math.floor(end.getTime() / 1000) : undefined,
    budget_usd: wish.budget === "" ? undefined : Number(wish.budget),
    retention_days: wish.retention === "" ? undefined : Number(wish.retention),
  };
}

/** The only moment at which the key can be read. */
function Made({ record, onClose }) {
  return html`<${Dialog} title="The key was made" onClose=${onClose} footer=${html`<${Button} kind="primary" onClick=${onClose}>Done<//>`}>
    <p>Copy it now: <strong>it is shown this once.</strong> The gateway keeps only its digest.</p>
    <p class="row made-key"><code class="break grow">${record.key}</code><${Copy} text=${record.key} name="Copy the key" /></p>
    <p class="small soft break">${record.name} · tenant <code>${record.tenant}</code> · ${record.scopes.join(", ")}${record.expires_at ? ` · until ${moment(record.expires_at)}` : ""}</p>
  <//>`;
}
return { MakeKey: MakeKey };
})();
const $js_pages_keys = (() => { // js/pages/keys.js
// The gateway's API keys: made, listed, changed, revoked. Only an operator may see them.
const { html: html, useId: useId, useState: useState } = $js_lib;
const { send: send } = $js_api;
const { useCommands: useCommands } = $js_commands;
const { count: count, dollars: dollars, nameTenant: nameTenant } = $js_format;
const { useLoaded: useLoaded } = $js_load;
const { to: to } = $js_router;
const { Confirm: Confirm, useAction: useAction } = $js_ui_confirm;
const { Badge: Badge, Button: Button, Dialog: Dialog, Empty: Empty, Failure: Failure, Field: Field, Loading: Loading, When: When } = $js_ui_parts;
const { readAllKeys: readAllKeys } = $js_pages_operation_keys;
const { MakeKey: MakeKey } = $js_pages_keys_make;

function Keys({ session }) {
  const keys = useLoaded(readNewestFirst, []);
  const [open, setOpen] = useState(null);
  const close = () => setOpen(null);
  const isRefused = [401, 403].includes(keys.error?.status);
  const make = () => setOpen({ name: "make" });
  useCommands([!isRefused && { text: "Make a key…", run: make }]);
  return html`
    <div class="page-head">
      <h1 tabindex="-1">Keys</h1>
      ${!isRefused && html`<${Button} kind="primary" disabled=${keys.data === null} onClick=${make}>Make a key…<//>`}
    </div>
    ${session.auth_mode === "open" && html`<div class="notice"><p><strong>Keys are not checked yet.</strong> This gateway runs with <code>auth.mode: open</code>: everyone who reaches it is let in. Keys that you make now count once <code>auth.mode: keys</code> is
      configured and the gateway is started again.</p></div>`}
    ${isRefused && html`<div class="notice"><p><strong>Only an operator may see keys.</strong></p>
      <p class="hint">Open the link that the gateway prints at its start, or look with a key that has the scope <code>admin</code>.</p></div>`}
    ${keys.error && !isRefused && html`<${Failure} error=${keys.error} retry=${keys.reload} />`}
    ${keys.data === null && !keys.error && html`<${Loading} />`}
    ${keys.data?.length === 0 && html`<div class="panel"><${Empty}><p>There is no key yet.</p>
      <p>A key names who asks: it has its own conversations, models and budget.</p><//></div>`}
    ${keys.data?.length > 0 && html`<${Table} keys=${keys.data} onBudget=${(key) => setOpen({ name: "budget", key })}
      onRevoke=${(key) => setOpen({ name: "revoke", key })} />`}
    ${open?.name === "make" && html`<${MakeKey} session=${session} tenants=${tenantsOf(keys.data)} onMade=${keys.reload} onClose=${close} />`}
    ${open?.name === "budget" && html`<${Budget} record=${open.key} onDone=${keys.reload} onClose=${close} />`}
    ${open?.name === "revoke" && html`<${Revoke} record=${open.key} onDone=${keys.reload} onClose=${close} />`}
  `;
}

const readNewestFirst = async (signal) => (await readAllKeys(signal)).reverse();

const tenantsOf = (keys) => [...new Set((keys ?? []).map((key) => key.tenant))];

function Table({ keys, onBudget, onRevoke }) {
  const hasBudgets = keys.some((key) => key.budget_usd !== undefined);
  // A tenant that was made for a key has the name of its oldest key.
  const names = new Map(keys.filter((key) => key.tenant.startsWith("ten_")).map((key) => [key.tenant, key.name]));
  return html`<div class="panel list"><div class="scroll-x" tabindex="0" role="region" aria-label="Keys"><table class="data keys-table">
    <thead><tr><th scope="col">Name</th><th scope="col" class="wide">Key</th><th scope="col" class="wide">State</th><th scope="col" class="wide">Tenant</th><th scope="col" class="wide">Scopes</th>
      <th scope="col" class="wide">Models</th>${hasBudgets && html`<th scope="col" class="number wide">Spent this month</th>`}<th scope="col" class="wide">Expires</th><th scope="col" class="wide">Created</th>
      <th scope="col"><span class="visually-hidden">Actions</span></th></tr></thead>
    <tbody>${keys.map((key) => html`<tr key=${key.id} class=${stateOf(key) === "valid" ? "" : "over"}>
      <th scope="row" class="break"><a class="quiet" href=${to(["requests"], { key_id: key.id })} title="Requests with ${key.name}">${key.name}</a>
        <div class="narrow facts small soft"><code>${key.hint}</code><${State} of=${stateOf(key)} />${hasBudgets && html`<span>${spentOf(key)}</span>`}</div></th>
      <td class="wide"><code title=${key.id}>${key.hint}</code></td>
      <td class="wide"><${State} of=${stateOf(key)} /></td>
      <td class="wide"><span title=${key.tenant}>${nameTenant({ ...key, tenant_name: names.get(key.tenant) })}</span></td>
      <td class="wide">${key.scopes.join(", ")}</td>
      <td class="break wide">${key.models.length ? key.models.join(", ") : html`<span class="soft">all</span>`}${key.policy && html`<div class="soft">policy ${key.policy}</div>`}
        ${key.retention_days && html`<div class="soft">kept ${count(key.retention_days)} days</div>`}</td>
      ${hasBudgets && html`<td class="number wide">${spentOf(key)}</td>`}
      <td class="wide">${key.expires_at ? html`<${When} at=${key.expires_at} />` : html`<span class="soft">never</span>`}</td>
      <td class="wide"><${When} at=${key.created_at} /></td>
      <td class="number">${!key.revoked_at && html`<${Button} small kind="plain" aria-label=${`Budget of ${key.name}…`} onClick=${() => onBudget(key)}>Budget…<//>
        <${Button} small kind="plain" aria-label=${`Revoke ${key.name}…`} onClick=${() => onRevoke(key)}>Revoke…<//>`}</td>
    </tr>`)}</tbody>
  </table></div></div>`;
}

const spentOf = (key) => html`${dollars(key.spent_usd)}${key.budget_usd !== null && html`<span class="soft"> of ${dollars(key.budget_usd)}</span>`}`;

function stateOf(key) {
  if (key.revoked_at) return "revoked";
  if (key.expires_at && key.expires_at * 1000 < Date.now()) return "expired";
  return typeof key.budget_usd === "number" && key.spent_usd >= key.budget_usd ? "over budget" : "valid";
}

const STATE_KINDS = { valid: "good", "over budget": "warn" };

const State = ({ of }) => html`<${Badge} kind=${STATE_KINDS[of] ?? ""}>${of}<//>`;

function Budget({ record, onDone, onClose }) {
  const [budget, setBudget] = useState(record.budget_usd ?? "");
  const { busy, error, run } = useAction(
    () => send("POST", `v1/admin/keys/${encodeURIComponent(record.id)}`, { budget_usd: budget === "" ? null : Number(budget) }),
    () => {
      onDone();
      onClose();
    },
  );
  const id = useId();
  const submit = (event) => {
    event.preventDefault();
    if (!busy) run();
  };
  return html`<${Dialog} title="Change the budget" onClose=${onClose} footer=${html`<${Button} onClick=${onClose}>Cancel<//>
    <${Button} kind="primary" type="submit" form=${id} disabled=${busy}>${busy ? "Changing…" : "Change"}<//>`}>
    <form id=${id} class="stack" onSubmit=${submit}>
      <p><strong class="break">${record.name}</strong> <code>${record.hint}</code> has spent ${dollars(record.spent_usd)} this month.</p>
      <${Field} label="Budget, $ a month" hint="Left empty: no limit. What was spent stays.">${(field, hintId) => html`<input id=${field} aria-describedby=${hintId} class="input"
        type="number" min="0" step="any" placeholder="none" value=${budget} onInput=${(event) => setBudget(event.target.value)} />`}<//>
      <${Failure} error=${error} />
    </form>
  <//>`;
}

function Revoke({ record, onDone, onClose }) {
  return html`<${Confirm} title="Revoke this key?" action="Revoke for good" onClose=${onClose}
    onConfirm=${async () => { await send("DELETE", `v1/admin/keys/${encodeURIComponent(record.id)}`); onDone(); }}>
    <p><strong class="break">${record.name}</strong> <code>${record.hint}</code></p>
    <p>Who sends it is refused from then on, on other machines after some seconds. Its conversations stay. This cannot be taken back.</p>
  <//>`;
}
return { Keys: Keys };
})();
const $js_pages_overview = (() => { // js/pages/overview.js
// Load, errors, tokens saved, cache hits, cost: how the gateway is doing now, and over an hour, a day or a week.
const { html: html, useMemo: useMemo } = $js_lib;
const { get: get } = $js_api;
const { count: count, dollars: dollars, duration: duration, moment: moment, percent: percent, short: short } = $js_format;
const { useEvery: useEvery, useLoaded: useLoaded } = $js_load;
const { go: go, to: to } = $js_router;
const { isOperator: isOperator } = $js_session;
const { Chart: Chart } = $js_ui_chart;
const { Choices: Choices } = $js_ui_choices;
const { Numbers: Numbers } = $js_ui_numbers;
const { Badge: Badge, Empty: Empty, Failure: Failure, Loading: Loading, Status: Status } = $js_ui_parts;

const REFRESH_SECONDS = 5;
const PERCENTILES = ["p50", "p95", "p99"];
const LATENCIES = {
  first_byte_seconds: "First byte",
  request_seconds: "Whole request",
  upstream_seconds: "Provider",
  store_seconds: "Database",
};
/** Fewer failed calls are no news. */
const LEAST_FAILURES = 3;
const RANGES = { hour: "Hour", day: "Day", week: "Week" };
/** Samples as far apart are of more than a day. */
const DAY_RANGE_SECONDS = 300;
const clock = new Intl.DateTimeFormat("en", { timeStyle: "medium", hourCycle: "h23" });

function Overview({ route, session }) {
  const range = route.query.get("range") in RANGES ? route.query.get("range") : "hour";
  const overview = useLoaded(async (signal) => {
    const read = (query) => get("v1/admin/overview", query, { signal });
    const [told, longer] = await Promise.all([read({}), range === "hour" ? null : read({ range })]);
    return { ...told, range, shown: (longer ?? told).series };
  }, [range]);
  useEvery(REFRESH_SECONDS, overview.reload);
  const { data, error } = overview;
  return html`<div class="page-head">
      <h1 tabindex="-1">Overview</h1>
      ${data && html`<span class="soft small">${facts(data)}</span>`}
    </div>
    ${error && !data && html`<${Refused} error=${error} retry=${overview.reload} />`}
    ${error && data && html`<div class="notice warn" role="alert">These numbers are old: ${error.message}</div>`}
    ${!data && !error && html`<${Loading}>Reading the numbers…<//>`}
    ${data && html`<${All} told=${data} showsRequests=${isOperator(session)} />`}`;
}

function facts(told) {
  const workers = told.workers === 1 ? "1 process" : `${count(told.workers)} processes`;
  return `up for ${duration(told.uptime_seconds)} · ${workers} · ${told.database} · since ${moment(told.started_at)}`;
}

/** Who may see this, and what switches it on. */
function Refused({ error, retry }) {
  if (error.status === 404) {
    return html`<div class="notice"><p><strong>The overview is switched off.</strong></p>
      <p class="hint">Set <code>telemetry.metrics: true</code> in the gateway’s configuration to have it back.</p></div>`;
  }
  if (error.status === 401 || error.status === 403) {
    return html`<div class="notice"><p><strong>This key may not see the overview.</strong></p>
      <p class="hint">It tells of everybody’s requests, though of nothing that was said, and needs a key with the scope <code>admin</code>: <code>concertina keys create --name operator --scopes admin</code>, then “Change key” above.</p></div>`;
  }
  return html`<${Failure} error=${error} retry=${retry} />`;
}

function All({ told, showsRequests }) {
  const { totals, now } = told;
  const rates = useMemo(() => lastMinute(told.series.samples), [told.series.samples]);
  return html`<div class="stack overview">
    <${Failing} models=${told.models} showsRequests=${showsRequests} />
    <${Numbers} label="Now" of=${[
      { label: "Requests now", value: count(now.requests_in_flight), note: `${count(now.streams_open)} streaming` },
      { label: "Requests per second", value: rates ? rates.requests.toFixed(rates.requests < 10 ? 2 : 0) : "–", note: "over the last minute" },
      { label: "First byte, 95 %", value: duration(told.latency.first_byte_seconds.p95), note: `half within ${duration(told.latency.first_byte_seconds.p50)}` },
      { label: "Errors", value: count(totals.errors + totals.refusals), kind: totals.errors ? "bad" : "", note: totals.requests ? `${errorKinds(totals)}, ${share(totals.errors + totals.refusals, totals.requests)} of ${count(totals.requests)} requests` : "no requests yet" },
      { label: "Compactions now", value: count(now.compactions_running), note: `${count(sum(totals.compactions))} so far` },
    ]} />
    <${Numbers} label="Since the start" of=${[
      { label: "Tokens sent", value: short(totals.prompt_tokens), title: count(totals.prompt_tokens), note: `of ${short(totals.log_tokens)} without compaction` },
      { label: "Tokens saved", value: short(totals.saved_tokens), title: count(totals.saved_tokens), kind: totals.saved_tokens > 0 ? "good" : "", note: `${percent(totals.saved_tokens, totals.log_tokens)} · summaries took ${short(totals.summary_prompt_tokens + totals.summary_completion_tokens)}` },
      { label: "Cache hits", value: percent(totals.cached_tokens, totals.reported_prompt_tokens), note: `${short(totals.cached_tokens)} of ${short(totals.reported_prompt_tokens)} reported tokens` },
      { label: "Cost", value: dollars(totals.cost_usd), note: priceNote(told) },
      { label: "Cost saved", value: dollars(totals.saved_usd), kind: totals.saved_usd > 0 ? "good" : "", note: totals.saved_usd === null ? "no prices are configured" : "summaries paid" },
    ]} />
    ${totals.requests === 0 && html`<div class="panel"><${Empty}><p>Nothing was asked yet.</p><p>Point a client’s base URL at this gateway, or begin with <a href="#/chat">a chat</a>.</p><//></div>`}
    <div class="row"><${Choices} label="Range of the charts" of=${RANGES} chosen=${told.range} onChoose=${(range) => go(["overview"], { range }, { replace: true })} /></div>
    <${Charts} series=${told.shown} />
    <div class="overview-tables">
      <${Panel} title="Latency" note="of the last minutes"><${Latency} latency=${told.latency} /><//>
      <${Panel} title="Answers by status"><${Shares} of=${totals.statuses} name=${(status) => html`<${Status} of=${status} />`} /><//>
      <${Panel} title="Compactions by outcome"><${Shares} of=${totals.compactions} name=${(outcome) => html`<${Badge} kind=${outcome === "failed" ? "bad" : ""}>${outcome.replaceAll("_", " ")}<//>`} /><//>
      <${Panel} title="Errors" note=${told.errors.length ? errorKinds(totals) : ""}><${Errors} errors=${told.errors} showsRequests=${showsRequests} /><//>
    </div>
    <${Panel} title="Models" note=${totals.fallbacks ? `${plural(totals.fallbacks, "answer")} by another deployment than the first` : ""}><${Models} models=${told.models} /><//>
  </div>`;
}

const sum = (counts) => Object.values(counts).reduce((before, value) => before + value, 0);
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** Failures (5xx) are the gateway's or its providers', client errors (4xx) the requests'. */
const errorKinds = ({ errors, refusals }) => `${plural(errors, "failure")}, ${plural(refusals, "client error")}`;

function priceNote({ simulated, totals }) {
  if (simulated) return "the simulated model is free";
  return totals.cost_usd === null ? "no prices are configured" : "by the configured prices";
}

const share = (part, of) => `${((100 * part) / of).toFixed(part && part / of < 0.001 ? 3 : 1)} %`;

function Panel({ title, note, children }) {
  return html`<section class="panel"><header><h2>${title}</h2>${note && html`<span class="small soft">${note}</span>`}</header>${children}</section>`;
}

/** Rates over the newest samples, up to a minute; null before there are two. */
function lastMinute(samples) {
  const last = samples.at(-1);
  const first = samples.findLast((sample) => last.at - sample.at >= 60) ?? samples[0];
  const seconds = last && last.at - first.at;
  return seconds > 0 ? { requests: (last.requests - first.requests) / seconds } : null;
}

/** How much of a cumulative total came in each interval. A restart of a process counts as none. */
function grown(samples, name) {
  return samples.map((sample, at) => (at === 0 || sample[name] === null ? null : Math.max(0, sample[name] - samples[at - 1][name])));
}

function perSecond(samples, name) {
  return grown(samples, name).map((value, at) => (value === null ? null : value / Math.max(1, samples[at].at - samples[at - 1].at)));
}

/** Whether a deployment gets no calls now, or fails more often than it answers. */
const isFailing = (model) => model.breaker_open || (model.errors >= LEAST_FAILURES && 2 * model.errors >= model.requests);

/** Deployments that are down, or were for most of the time. */
function Failing({ models, showsRequests }) {
  const failing = models.filter(isFailing);
  if (!failing.length) return null;
  return html`<div class="notice bad" role="alert">
    ${failing.map((model) => html`<p key=${`${model.provider} ${model.model}`}><strong>${model.provider}/${model.model}</strong>${model.breaker_open ? " gets no calls for a while" : ""}: ${count(model.errors)} of ${plural(model.requests, "call")} failed since the start${model.errors > 0 && ` (${failuresOf(model)})`}.
      ${showsRequests && html` <a href=${to(["requests"], { outcome: "error", provider: model.provider })}>Its requests with errors</a>`}</p>`)}
    <p class="hint">Meanwhile other deployments and fallbacks of the model are called, if it has any.</p></div>`;
}

function Charts({ series }) {
  const { samples, interval_seconds: seconds } = series;
  const charts = useMemo(() => chartsOf(samples), [samples.length, samples.at(-1)?.at]);
  if (samples.length < 2) return html`<p class="soft">Charts begin with the second sample, ${seconds < 120 ? `${seconds} s` : duration(seconds)} after the start.</p>`;
  return html`<div class="overview-charts">
    ${charts.map((chart) => html`<section class="panel" key=${chart.title}>
      <header><h2>${chart.title}</h2><span class="small soft">last ${duration(samples.at(-1).at - samples[0].at)}</span></header>
      <${Chart} label="${chart.title}, every ${seconds < 120 ? `${seconds} s` : duration(seconds)}" time xLabel="Time" x=${chart.x} lines=${chart.lines} height=${190} least=${chart.least}
        formatX=${(at) => (seconds < DAY_RANGE_SECONDS ? clock.format(new Date(at * 1000)) : moment(at))} formatY=${chart.formatY} />
    </section>`)}
  </div>`;
}

function chartsOf(samples) {
  const x = samples.map((sample) => sample.at);
  const rate = (value) => (value === null ? "–" : value.toFixed(value < 10 ? 2 : 1));
  const line = (label, values, color, rest = {}) => ({ label, values, color, ...rest });
  return [
    { title: "Requests per second", least: 0.1, formatY: (value) => String(Number(value.toFixed(2))), lines: [line("Requests", perSecond(samples, "requests"), "--chart-1", { area: true, format: rate })] },
    { title: "Tokens", formatY: short, lines: [
      line("Saved", grown(samples, "saved_tokens"), "--chart-3", { dashed: true }),
      line("Sent", grown(samples, "prompt_tokens"), "--chart-1", { area: true }),
      line("Cached", grown(samples, "cached_tokens"), "--chart-2"),
    ] },
    { title: "First byte, 95 %", least: 0.01, formatY: duration, lines: [line("95 % within", samples.map((sample) => sample.first_byte_p95_seconds), "--chart-4", { format: duration })] },
    { title: "Errors", formatY: (value) => (Number.isInteger(value) ? count(value) : ""), lines: [
      line("Failures (5xx)", grown(samples, "errors"), "--chart-5", { area: true }),
      line("Client errors (4xx)", grown(samples, "refusals"), "--chart-3", { dashed: true }),
    ] },
  ].map((chart) => ({ ...chart, x }));
}

function Latency({ latency }) {
  return html`<div class="scroll-x" tabindex="0" role="region" aria-label="Latency"><table class="data">
    <thead><tr><th scope="col">Share of requests</th><th scope="col" class="number">50 %</th><th scope="col" class="number">95 %</th><th scope="col" class="number">99 %</th></tr></thead>
    <tbody>${Object.entries(LATENCIES).map(([name, words]) => html`<tr><th scope="row">${words}</th>
      ${PERCENTILES.map((one) => html`<td class="number">${duration(latency[name]?.[one])}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

/** Counts with their share of the whole, as words and as bars. */
function Shares({ of, name }) {
  const rows = Object.entries(of).filter(([, value]) => value > 0).sort(([, one], [, other]) => other - one);
  const all = sum(of);
  if (!rows.length) return html`<p class="soft small">None yet.</p>`;
  return html`<table class="data"><tbody>${rows.map(([key, value]) => html`<tr key=${key}><th scope="row">${name(key)}</th>
    <td class="wide-cell"><span class="share" style=${{ width: `${(100 * value) / all}%` }}></span></td>
    <td class="number">${count(value)}</td><td class="number soft">${percent(value, all)}</td></tr>`)}</tbody></table>`;
}

function Errors({ errors, showsRequests }) {
  if (!errors.length) return html`<p class="soft small">None yet.</p>`;
  const codeOf = (error) => html`<code>${error.code ?? "none"}</code>`;
  return html`<div class="scroll-x" tabindex="0" role="region" aria-label="Errors"><table class="data errors"><thead><tr><th scope="col">Code</th><th scope="col">Status</th><th scope="col" class="wide">Kind</th><th scope="col" class="number">How often</th></tr></thead>
    <tbody>${errors.map((error) => html`<tr key=${`${error.status} ${error.code}`}><th scope="row">${showsRequests
      ? html`<a href=${to(["requests"], { outcome: "error", status: error.status })} title="Requests with status ${error.status}">${codeOf(error)}</a>` : codeOf(error)}</th><td>${error.status}</td>
      <td class="wide">${error.status >= 500 ? html`<${Badge} kind="bad">failure<//>` : "client error"}</td><td class="number">${count(error.count)}</td></tr>`)}</tbody></table></div>`;
}

/** Failed calls by what became of them: 3 timeout, 2 rate limited */
const failuresOf = ({ failures }) => Object.entries(failures).map(([outcome, number]) => `${count(number)} ${outcome.replaceAll("_", " ")}`).join(", ");

function Models({ models }) {
  if (!models.length) return html`<p class="soft small">No model was asked yet.</p>`;
  return html`<div class="scroll-x" tabindex="0" role="region" aria-label="Models"><table class="data">
    <thead><tr><th scope="col">Model</th><th scope="col">Provider</th><th scope="col">State</th><th scope="col" class="number wide">Calls</th><th scope="col" class="number">Errors</th>
      ${["Tokens sent", "Cached", "Answered", "Cost"].map((head) => html`<th scope="col" class="number wide">${head}</th>`)}</tr></thead>
    <tbody>${models.map((model) => html`<tr key=${`${model.provider} ${model.model}`}>
      <th scope="row" class="break">${model.model}</th><td class="break">${model.provider}</td><td>${stateOf(model)}</td><td class="number wide">${count(model.requests)}</td>
      <td class="number">${model.errors ? html`<${Badge} kind="bad">${count(model.errors)}<//> <span class="small soft">${failuresOf(model)}</span>` : "0"}</td><td class="number wide">${count(model.prompt_tokens)}</td>
      <td class="number wide">${count(model.cached_tokens)}</td><td class="number wide">${count(model.completion_tokens)}</td><td class="number wide">${dollars(model.cost_usd)}</td></tr>`)}</tbody>
  </table></div>`;
}

function stateOf(model) {
  if (model.breaker_open) return html`<${Badge} kind="bad">no calls<//>`;
  if (isFailing(model)) return html`<${Badge} kind="bad">failing<//>`;
  return model.requests ? html`<${Badge} kind="good">called<//>` : "–";
}
return { Overview: Overview };
})();
const $js_pages_requests_filters = (() => { // js/pages/requests/filters.js
// Which requests are wanted, as the address says it and as the API takes it.
const { html: html, useEffect: useEffect, useState: useState } = $js_lib;
const { Button: Button } = $js_ui_parts;
const { CONTEXT_CHOICES: CONTEXT_CHOICES, Choice: Choice, KeyChoice: KeyChoice } = $js_pages_operation_keys;

const HOUR_SECONDS = 3600;
/** Seconds before now. */
const RANGES = { hour: HOUR_SECONDS, day: 24 * HOUR_SECONDS, week: 7 * 24 * HOUR_SECONDS };
const OUTCOMES = [["", "All"], ["error", "Errors"], ["ok", "Answered"]];
/** The choices: name in the address, label, what each value says. The first is no filter. */
const CHOICES = [
  ["range", "Time", [["", "any time"], ["hour", "last hour"], ["day", "last 24 hours"], ["week", "last 7 days"], ["between", "from … until"]]],
  ["context_status", "Context", CONTEXT_CHOICES],
  ["slow", "Duration", [["", "any duration"], ["1000", "over 1 s"], ["5000", "over 5 s"], ["20000", "over 20 s"], ["60000", "over 1 min"]]],
];
/** The texts: name in the address and in the API, label, what stands there without one. */
const TEXTS = [
  ["model", "Model", "any model"],
  ["provider", "Provider", "any provider"],
  ["status", "Status", "any status"],
  ["tenant", "Tenant", "any tenant"],
  ["conversation_id", "Conversation", "any conversation"],
];
const BETWEEN = [["from", "From"], ["until", "Until"]];
const NAMES = ["outcome", "key_id", ...[...CHOICES, ...TEXTS, ...BETWEEN].map(([name]) => name)];

/** @param {URLSearchParams} query  @returns {Record<string, string>} */
const readFilters = (query) => Object.fromEntries(NAMES.map((name) => [name, query.get(name) ?? ""]));

const isFiltered = (wish) => NAMES.some((name) => wish[name] !== "");

const NO_FILTERS = Object.fromEntries(NAMES.map((name) => [name, ""]));

/** What `GET /v1/admin/requests` is asked with. Times are the reader's own. */
function requestQuery({ range, from, until, slow, status, ...same }) {
  const moment = (text) => (Number.isNaN(Date.parse(text)) ? null : Date.parse(text) / 1000);
  const times = range in RANGES
    ? { started_after: Date.now() / 1000 - RANGES[range] }
    : range === "between" ? { started_after: moment(from), started_before: moment(until) } : {};
  return { ...same, ...times, min_duration_ms: slow, status: /^[1-5]\d\d$/.test(status) ? status : null };
}

/** The filters. `known` are the rows that are shown: their models, providers, statuses and tenants are offered. */
function Filters({ wish, known, onAsk }) {
  return html`<div class="request-filters" role="group" aria-label="Filters">
    <span class="segments" role="group" aria-label="Outcome">${OUTCOMES.map(([value, text]) => html`<button type="button" key=${value} class="choice"
      aria-pressed=${wish.outcome === value} onClick=${() => onAsk({ outcome: value })}>${text}</button>`)}</span>
    ${CHOICES.map(([name, label, choices]) => html`<${Choice} key=${name} aria-label=${label} value=${wish[name]} choices=${choices} onChoose=${(value) => onAsk({ [name]: value })} />`)}
    ${wish.range === "between" && BETWEEN.map(([name, label]) => html`<input key=${name} class="input" type="datetime-local" aria-label=${label} title=${label} value=${wish[name]}
      onChange=${(event) => onAsk({ [name]: event.target.value })} />`)}
    <${KeyChoice} aria-label="Key" value=${wish.key_id} onChoose=${(value) => onAsk({ key_id: value })} />
    ${TEXTS.map(([name, label, empty]) => html`<${TextFilter} key=${name} name=${name} label=${label} empty=${empty} value=${wish[name]} offered=${offered(name, known)}
      onDone=${(value) => onAsk({ [name]: value })} />`)}
    ${isFiltered(wish) && html`<${Button} kind="plain" onClick=${() => onAsk(NO_FILTERS)}>Clear<//>`}
  </div>`;
}

/** @returns {[string, string?][]} values, each with its name if it has another */
function offered(name, rows) {
  if (name === "conversation_id") return [];
  const values = name === "model" ? rows.flatMap((row) => [row.model, row.answered_by]) : rows.map((row) => row[name]);
  const named = new Map(name === "tenant" ? rows.map((row) => [row.tenant, row.tenant_name]) : []);
  return [...new Set(values.filter(Boolean))].sort().map((value) => [String(value), named.get(value)]);
}

/** The API compares whole names, so a name counts once it is typed to its end: at Enter, or when the field is left. */
function TextFilter({ name, label, empty, value, offered: values, onDone }) {
  const [typed, setTyped] = useState(value);
  useEffect(() => setTyped(value), [value]);
  const done = () => typed.trim() !== value && onDone(typed.trim());
  return html`<form class="text-filter" onSubmit=${(event) => { event.preventDefault(); done(); }}>
    <input class="input" aria-label=${label} placeholder=${empty} title=${typed || undefined} spellcheck="false" autocomplete="off" list=${values.length ? `known-${name}` : undefined}
      data-set=${value ? "" : undefined} value=${typed} onInput=${(event) => setTyped(event.target.value)} onChange=${done} />
    ${values.length > 0 && html`<datalist id="known-${name}">${values.map(([one, text]) => html`<option value=${one} label=${text ?? undefined} />`)}</datalist>`}
  </form>`;
}
return { readFilters: readFilters, isFiltered: isFiltered, NO_FILTERS: NO_FILTERS, requestQuery: requestQuery, Filters: Filters };
})();
const $js_pages_requests_live = (() => { // js/pages/requests/live.js
// The newest requests, asked for again and again. New ones wait while somebody reads.
const { useEffect: useEffect, useReducer: useReducer, useRef: useRef } = $js_lib;
const { get: get } = $js_api;
const { useEvery: useEvery } = $js_load;
const { requestQuery: requestQuery } = $js_pages_requests_filters;

const REFRESH_SECONDS = 3;
/** A request comes into the list when it ends, and stands where it began: so all of a page are read again. More rows take longer to draw than to read. */
const PAGE = 50;
/** The page would become slow with more rows. */
const MOST_ROWS = 1000;
const NOTHING = { known: [], shown: null, hasMore: false, error: null, isStale: true, isLoadingMore: false };

/**
 * @param {Record<string, string>} query  the filters, as the address has them
 * @param {boolean} isPaused
 * @param {() => boolean} isRead  whether somebody reads the list, so that no row may move
 * @returns `rows` is null before the first answer; `waiting` is how many new rows are not shown yet
 */
function useLiveRequests(query, isPaused, isRead) {
  const asked = JSON.stringify(query);
  const state = useRef(NOTHING);
  const running = useRef(null);
  const [, draw] = useReducer((before) => before + 1, 0);
  const change = (changed) => {
    state.current = { ...state.current, ...changed };
    draw();
  };
  const ask = async (after, take) => {
    running.current?.abort();
    const leaving = new AbortController();
    running.current = leaving;
    try {
      const page = await get("v1/admin/requests", { ...requestQuery(JSON.parse(asked)), limit: PAGE, after }, { signal: leaving.signal });
      if (!leaving.signal.aborted) change({ ...take(page), error: null });
    } catch (error) {
      if (!leaving.signal.aborted) change({ error, isLoadingMore: false });
    } finally {
      if (running.current === leaving) running.current = null;
    }
  };
  const reload = () => ask(null, (page) => {
    const { known, shown, hasMore, isStale } = state.current;
    const next = joinNewest(page, isStale ? [] : known, hasMore);
    return { ...next, shown: !isStale && isRead() ? shown : next.known, isStale: false };
  });
  const more = () => {
    change({ isLoadingMore: true });
    return ask(state.current.known.at(-1).id, (page) => {
      const known = [...state.current.known, ...page.data];
      return { known, shown: known, hasMore: page.has_more && known.length < MOST_ROWS, isLoadingMore: false };
    });
  };
  useEffect(() => {
    change({ isStale: true });
    reload();
    return () => running.current?.abort();
  }, [asked]);
  useEvery(REFRESH_SECONDS, () => !isPaused && running.current === null && reload());
  const { known, shown, hasMore, error, isStale, isLoadingMore } = state.current;
  return {
    rows: shown, hasMore, error, isStale, isLoadingMore, more, reload,
    waiting: isStale || shown === known ? 0 : countMissing(known, shown),
    showNew: () => change({ shown: known }),
  };
}

function countMissing(rows, shown) {
  const ids = new Set(shown.map((row) => row.id));
  return rows.filter((row) => !ids.has(row.id)).length;
}

/**
 * The rows of the newest page before those that were known already. Rows that are the same stay the same objects.
 * @returns {{known: object[], hasMore: boolean}}
 */
function joinNewest(page, known, hadMore) {
  const before = new Map(known.map((row) => [row.id, row]));
  const rows = page.data.map((row) => before.get(row.id) ?? row);
  if (!page.has_more) return { known: rows, hasMore: false };
  // No row in common: there are requests in between that nobody has read.
  if (!rows.some((row) => before.has(row.id))) return { known: rows, hasMore: true };
  const inPage = new Set(page.data.map((row) => row.id));
  const older = known.filter((row) => !inPage.has(row.id) && row.started_at <= rows.at(-1).started_at);
  return { known: [...rows, ...older].slice(0, MOST_ROWS), hasMore: older.length ? hadMore : true };
}
return { useLiveRequests: useLiveRequests };
})();
const $js_pages_requests_parts = (() => { // js/pages/requests/parts.js
// What the list and the page of one request share.
const { html: html } = $js_lib;
const { to: to } = $js_router;
const { Badge: Badge } = $js_ui_parts;

const time = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat("en", { day: "numeric", month: "short" });
const CLIENT_LEFT = "client_disconnected";

/** 14:03:22, with the day before it if that is another than today. */
function clockTime(unixSeconds) {
  const at = new Date(unixSeconds * 1000);
  const isToday = at.toDateString() === new Date().toDateString();
  return isToday ? time.format(at) : `${day.format(at)} ${time.format(at)}`;
}

/** The status, and the error where there is one. A stream may have status 200 and an error. */
function Outcome({ of: { status, error } }) {
  if (!error) return html`<span class="soft number">${status}</span>`;
  const isOurs = status >= 500 || status < 400;
  if (error === CLIENT_LEFT) return html`<span class="outcome"><${Badge} title="The client left before the end of the answer">${status} client left<//></span>`;
  return html`<span class="outcome"><${Badge} kind=${isOurs ? "bad" : "warn"}>${status}<//> <code title=${error}>${error}</code></span>`;
}

/** Where what the model saw for a request is shown. */
const seenAt = ({ conversation_id: conversation, item_id: item }) => to(["conversations", conversation, "context"], { item });
return { clockTime: clockTime, Outcome: Outcome, seenAt: seenAt };
})();
const $js_pages_requests_time_spent = (() => { // js/pages/requests/time_spent.js
// On what a request spent its time: each moment belongs to one kind of work.
const { html: html } = $js_lib;
const { milliseconds: milliseconds } = $js_format;

/** The kinds, in the order in which they are drawn; the names are also classes that have the colours. */
const KINDS = {
  queue: "waiting for a free slot",
  gateway: "the gateway’s own work",
  summary: "waiting for a summary",
  failed: "calls that failed",
  waiting: "waiting for the first byte",
  writing: "the answer being written",
  other: "between steps, such as the pause before a further call",
};

/** What a moment counts as if several steps run in it: the first that fits. */
const ORDER = ["summary", "failed", "writing", "waiting", "queue", "gateway", "other"];
const GATEWAY_STEPS = new Set(["read", "resolve", "recall", "plan", "quotations"]);
const QUEUE_STEPS = new Set(["queue", "join"]);

/** Whether a call of a provider brought no answer. */
const isFailed = (detail) => Boolean(detail.error) || (detail.status ?? 0) >= 400;

/** The kind of a step, for its colour. */
function kindOf({ name, detail }) {
  if (name === "attempt") return isFailed(detail) ? "failed" : "waiting";
  if (name === "summary") return isFailed(detail) ? "failed" : "summary";
  if (name === "compaction") return "summary";
  if (QUEUE_STEPS.has(name)) return "queue";
  if (name === "first_byte" || name === "end") return "mark";
  return GATEWAY_STEPS.has(name) || name === "store" ? "gateway" : "other";
}

/**
 * The milliseconds of each kind of one request with its timeline; together they are its duration.
 * @returns {Record<string, number>}
 */
function spentByKind({ timeline, duration_ms: whole, first_byte_ms: firstByte }) {
  const parts = timeline.flatMap((step) => partsOf(step, firstByte));
  const borders = [...new Set([0, whole, ...parts.flatMap((part) => [part.from, part.to])])].filter((at) => at <= whole).sort((one, other) => one - other);
  const spent = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, 0]));
  for (let at = 1; at < borders.length; at += 1) {
    const running = new Set(parts.filter((part) => part.from <= borders[at - 1] && part.to >= borders[at]).map((part) => part.kind));
    spent[ORDER.find((kind) => running.has(kind)) ?? "other"] += borders[at] - borders[at - 1];
  }
  return spent;
}

/** A step as one part, the call that answered as two: before the first byte and after it. Storing runs beside others, or alone at the end. */
function partsOf(step, firstByte) {
  const { start_ms: from, end_ms: to } = step;
  const kind = kindOf(step);
  if (kind === "mark") return [];
  if (kind === "waiting" && firstByte !== null && firstByte > from && firstByte < to) {
    return [{ kind, from, to: firstByte }, { kind: "writing", from: firstByte, to }];
  }
  return [{ kind, from, to }];
}

/**
 * What a row of the list says of the same, without a timeline.
 * @returns {Record<string, number>|null}  null if nothing is known
 */
function roughlySpent({ duration_ms: whole, first_byte_ms: firstByte, queue_ms: queue, compaction_ms: compaction, status }) {
  if (!whole) return null;
  const known = (queue ?? 0) + (compaction ?? 0);
  const begun = Math.max(known, firstByte ?? whole);
  return {
    queue: queue ?? 0, summary: compaction ?? 0,
    [status >= 400 ? "failed" : "waiting"]: begun - known, writing: Math.max(0, whole - begun),
  };
}

/** The kinds side by side on a bar. `most`: the milliseconds that fill it. */
function SpentBar({ spent, most }) {
  return html`<span class="spent-bar" aria-hidden="true">${Object.keys(KINDS).map((kind) => spent[kind] > 0 && html`<span key=${kind} class="kind-${kind}"
    style=${{ width: `${Math.min(100, (100 * spent[kind]) / most)}%` }}></span>`)}</span>`;
}

/** What the colours mean, with the time of each. */
function SpentKey({ spent }) {
  const whole = Object.values(spent).reduce((sum, ms) => sum + ms, 0);
  const kinds = Object.keys(KINDS).filter((kind) => spent[kind] > 0).sort((one, other) => spent[other] - spent[one]);
  return html`<ul class="spent-key small" aria-label="Where the time went">${kinds.map((kind) => html`<li key=${kind}>
    <span class="spent-swatch kind-${kind}"></span>${KINDS[kind]} <strong class="number">${milliseconds(spent[kind])}</strong>${" "}<span class="number soft">${shareOf(spent[kind], whole)}</span></li>`)}</ul>`;
}

const shareOf = (part, whole) => (part / whole < 0.01 ? "<1 %" : `${Math.round((100 * part) / whole)} %`);
return { KINDS: KINDS, isFailed: isFailed, kindOf: kindOf, spentByKind: spentByKind, roughlySpent: roughlySpent, SpentBar: SpentBar, SpentKey: SpentKey };
})();
const $js_pages_requests_list = (() => { // js/pages/requests/list.js
// The list of requests: newest first, live, and still while somebody reads it.
const { html: html, memo: memo, useCallback: useCallback, useMemo: useMemo, useRef: useRef, useState: useState } = $js_lib;
const { useCommands: useCommands } = $js_commands;
const { count: count, dollars: dollars, milliseconds: milliseconds, nameTenant: nameTenant, percent: percent, shortId: shortId } = $js_format;
const { go: go, to: to } = $js_router;
const { Button: Button, Empty: Empty, Failure: Failure, Loading: Loading, Status: Status } = $js_ui_parts;
const { NotShown: NotShown, Outdated: Outdated } = $js_pages_operation_access;
const { Filters: Filters, NO_FILTERS: NO_FILTERS, isFiltered: isFiltered, readFilters: readFilters } = $js_pages_requests_filters;
const { useLiveRequests: useLiveRequests } = $js_pages_requests_live;
const { Outcome: Outcome, clockTime: clockTime, seenAt: seenAt } = $js_pages_requests_parts;
const { KINDS: KINDS, SpentBar: SpentBar, roughlySpent: roughlySpent } = $js_pages_requests_time_spent;

const SETTING = html`<code>telemetry.recent_requests</code> above 0`;
/** Longer requests fill the bar: one that takes minutes would press all others flat. */
const BAR_QUANTILE = 0.95;

function RequestList({ route }) {
  const wish = readFilters(route.query);
  const [isPaused, setPaused] = useState(false);
  const table = useRef(null);
  const live = useLiveRequests(wish, isPaused, useCallback(() => isRead(table.current), []));
  const ask = (changed) => go(["requests"], { ...wish, ...changed }, { replace: true });
  useCommands([
    { text: isPaused ? "Go on refreshing the list" : "Pause the list", run: () => setPaused(!isPaused) },
    { text: wish.outcome === "error" ? "Show all requests" : "Show only requests with errors", run: () => ask({ outcome: wish.outcome === "error" ? "" : "error" }) },
    isFiltered(wish) && { text: "Clear the filters", run: () => ask(NO_FILTERS) },
  ]);
  const isAway = live.error && live.rows === null;
  const showNew = () => {
    live.showNew();
    scrollTo({ top: 0 });
    document.querySelector("h1")?.focus({ preventScroll: true });
  };
  return html`
    <div class="page-head">
      <h1 tabindex="-1">Requests</h1>
      ${live.rows !== null && html`<${Summary} rows=${live.rows} />`}
      ${!isAway && html`<${Button} aria-pressed=${isPaused} onClick=${() => setPaused(!isPaused)}>${isPaused ? "Go on" : "Pause"}<//>`}
    </div>
    ${isAway ? html`<${NotShown} error=${live.error} what="requests" setting=${SETTING} retry=${live.reload} />` : html`
      <${Filters} wish=${wish} known=${live.rows ?? []} onAsk=${ask} />
      ${live.error && live.rows !== null && html`<${Outdated} error=${live.error} />`}
      <p class="visually-hidden" role="status">${live.waiting > 0 ? "New requests wait above the list" : ""}</p>
      ${live.waiting > 0 && html`<div class="new-rows"><${Button} kind="primary" small onClick=${showNew}>↑ ${count(live.waiting)} new<//></div>`}
      ${live.rows === null ? html`<${Loading}>Reading the requests…<//>` : html`<${Rows} live=${live} wish=${wish} table=${table} isPaused=${isPaused} onClear=${() => ask(NO_FILTERS)} />`}`}
  `;
}

/** Whether somebody is about to read or to click: then no row moves. */
function isRead(table) {
  if (!table) return false;
  const hasPointer = matchMedia("(hover: hover)").matches && table.matches(":hover");
  return hasPointer || table.contains(document.activeElement) || table.getBoundingClientRect().top < 0;
}

function Rows({ live, wish, table, isPaused, onClear }) {
  const most = useMemo(() => quantile(live.rows.map((row) => row.duration_ms), BAR_QUANTILE), [live.rows]);
  const query = JSON.stringify(wish);
  if (live.rows.length === 0) return html`<div class="panel">${isFiltered(wish)
    ? html`<${Empty}><p>No request that is kept is like that.</p><p><${Button} onClick=${onClear}>Clear the filters<//></p><//>`
    : html`<${Empty}><p>Nothing was asked yet.</p><p>Each request to a model appears here when it ends.</p><//>`}</div>`;
  return html`<div class="panel list ${live.isStale ? "stale" : ""}" aria-busy=${live.isStale}>
    <table class="data requests" ref=${table} onKeyDown=${moveByArrows}>
      <caption class="visually-hidden">Requests, newest first. Arrow keys move from one to the next.</caption>
      <thead><tr><th scope="col">Time</th><th scope="col">Status</th><th scope="col">Model</th><th scope="col" class="wide">Provider</th><th scope="col" class="number wide">Prompt</th>
        <th scope="col" class="number wider">Cached</th><th scope="col" class="number wide">Answer</th><th scope="col" class="wide">Context</th><th scope="col" class="number wide">First byte</th>
        <th scope="col" class="number">Duration</th><th scope="col" class="wide spent"><${BarKey} /></th>
        <th scope="col" class="number wider">Cost</th><th scope="col" class="wide">Key</th><th scope="col" class="wider">Conversation</th></tr></thead>
      <tbody>${live.rows.map((row) => html`<${Row} key=${row.id} row=${row} most=${most} query=${query} />`)}</tbody>
    </table>
    <div class="row list-end"><span class="small soft number grow">${endOfList(live)}${isPaused ? " · not refreshed" : ""}</span>
      ${live.hasMore && html`<${Button} small disabled=${live.isLoadingMore} onClick=${live.more}>${live.isLoadingMore ? "Loading…" : "Older"}<//>`}</div>
  </div>`;
}

const endOfList = ({ rows, hasMore }) => (hasMore ? `The newest ${count(rows.length)}` : `All ${count(rows.length)} that the gateway still has`);

function BarKey() {
  return html`<span class="visually-hidden">Where the time went</span><span class="bar-key" aria-hidden="true" title="Queue, summary, waiting for the first byte, answer">${["queue", "summary", "waiting", "writing"].map(
    (kind) => html`<span class="spent-swatch kind-${kind}" title=${KINDS[kind]}></span>`)}</span>`;
}

const Row = memo(({ row, most, query }) => {
  const wish = JSON.parse(query);
  const spent = roughlySpent(row);
  return html`<tr class=${row.error ? "failed" : ""}>
    <th scope="row"><a class="title number" href=${to(["requests", row.id], wish)} title=${row.id}>${clockTime(row.started_at)}</a></th>
    <td><${Outcome} of=${row} /></td>
    <td class="models"><${Models} row=${row} />
      <div class="narrow facts soft number">${row.error && html`<code class="bad-ink break">${row.error}</code>`}${row.provider && html`<span>${row.provider}${times(row)}</span>`}<span>${count(row.prompt_tokens)} → ${count(row.completion_tokens)}</span>
        ${row.context_status && row.context_status !== "full" && html`<${Status} of=${row.context_status} />`}${row.tenant && html`<span>${row.key_name ?? nameTenant(row)}</span>`}</div></td>
    <td class="wide">${row.provider ?? "–"}${row.attempts > 1 && html` <span class="attempts" title="${count(row.attempts)} calls of providers">×${count(row.attempts)}</span>`}</td>
    <td class="number wide">${count(row.prompt_tokens)}</td>
    <td class="number wider soft">${row.cached_tokens ? percent(row.cached_tokens, row.prompt_tokens) : "–"}</td>
    <td class="number wide">${count(row.completion_tokens)}</td>
    <td class="wide">${row.context_status && row.context_status !== "full" ? html`<${Status} of=${row.context_status} />` : html`<span class="soft">${row.context_status ?? "–"}</span>`}</td>
    <td class="number wide">${milliseconds(row.first_byte_ms)}</td>
    <td class="number">${milliseconds(row.duration_ms)}<span class="narrow">${spent && html`<${SpentBar} spent=${spent} most=${most} />`}</span></td>
    <td class="wide spent">${spent && html`<${SpentBar} spent=${spent} most=${most} />`}</td>
    <td class="number wider">${dollars(row.cost_usd)}</td>
    <td class="wide who"><${Who} row=${row} wish=${wish} /></td>
    <td class="wider">${row.conversation_id ? html`<a class="quiet" title="What the model saw in ${row.conversation_id}" href=${seenAt(row)}>${shortId(row.conversation_id)}</a>` : "–"}</td>
  </tr>`;
});

/** Who asked: the key by its name, and the tenant where that says more. */
function Who({ row, wish }) {
  if (!row.tenant) return "–";
  const tenant = nameTenant(row);
  const only = (name, text, title) => html`<a class="quiet" title=${title} href=${to(["requests"], { ...wish, [name]: row[name] })}>${text}</a>`;
  const isNamed = row.key_name !== null;
  return html`${isNamed && only("key_id", row.key_name, `Only requests with the key ${row.key_name}`)}${tenant !== row.key_name && html` <span class=${isNamed ? "small soft" : ""}>${only("tenant", tenant, `Only requests of ${row.tenant}`)}</span>`}`;
}

const times = (row) => (row.attempts > 1 ? ` ×${count(row.attempts)}` : "");

/** The model that was asked for, and the one that answered where it is another. */
function Models({ row }) {
  const isOther = row.answered_by && row.answered_by !== row.model;
  return html`<span class="model-name" title=${row.model}>${row.model ?? html`<span class="soft">no model</span>`}</span>${isOther && html`<span class="model-name soft" title="Answered by ${row.answered_by}">→ ${row.answered_by}</span>`}`;
}

/** In words what the rows are. */
function Summary({ rows }) {
  const failed = rows.filter((row) => row.error).length;
  const firstBytes = rows.filter((row) => row.first_byte_ms !== null && !row.error).map((row) => row.first_byte_ms);
  if (!rows.length) return null;
  const minutes = Math.max(1, Math.round((Date.now() / 1000 - rows.at(-1).started_at) / 60));
  return html`<p class="page-facts small soft number">${count(rows.length)} ${rows.length === 1 ? "request" : "requests"}<span class="wide"> in ${minutes < 120 ? `${minutes} min` : `${Math.round(minutes / 60)} h`}</span>${" · "}${failed ? html`<strong class="bad-ink">${count(failed)} ${failed === 1 ? "error" : "errors"}</strong>` : "no errors"}
    ${firstBytes.length > 0 && html`<span class="wide"> · first byte: half within ${milliseconds(quantile(firstBytes, 0.5))}, 95 % within ${milliseconds(quantile(firstBytes, 0.95))}</span>`}</p>`;
}

function quantile(values, share) {
  const sorted = [...values].sort((one, other) => one - other);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] || 1;
}

/** Arrow keys go from row to row. */
function moveByArrows(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
  const links = [...event.currentTarget.querySelectorAll("a.title")];
  const at = links.indexOf(event.target.closest("tr")?.querySelector("a.title"));
  const next = links[at + step];
  if (at < 0 || !next) return;
  event.preventDefault();
  next.focus({ preventScroll: true });
  next.closest("tr").scrollIntoView({ block: "nearest" });
}
return { RequestList: RequestList };
})();
const $js_pages_requests_story = (() => { // js/pages/requests/story.js
// In words: why a request took its time, and what became of it.
const { milliseconds: milliseconds } = $js_format;
const { to: to } = $js_router;
const { isFailed: isFailed } = $js_pages_requests_time_spent;

/** Waits shorter than this are not worth a word. */
const WORTH_TELLING_MS = 5;
const ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth"];
const REASONS = { timeout: "did not answer in time", dropped: "broke off", unreachable: "could not be reached", rate_limited: "was over its rate limit", server_error: "failed", refused: "refused the request", interrupted: "was interrupted" };
const CLIENT_LEFT = "client_disconnected";

/** @param {object} request  of `GET /v1/admin/requests/{id}` @returns {string} one to four sentences */
function story(request) {
  const { timeline, error, status } = request;
  const attempts = timeline.filter((step) => step.name === "attempt");
  const told = [...waits(request), ...attempts.map((step, at) => tellAttempt(step, at, attempts.length, request))];
  if (error === CLIENT_LEFT) told.push("The client left before the end of the answer");
  else if (!attempts.length && error) told.push(`The gateway refused it with ${status} ${error} and asked no model`);
  else if (error) told.push(`The client got ${status} ${error}`);
  else if (!attempts.length) told.push("No model was asked: the answer was there already");
  const sentences = told.map((one) => one[0].toUpperCase() + one.slice(1));
  return `${sentences.join(". ")}.`;
}

const OVERVIEW = { link: "How the providers do", href: to(["overview"]) };

/** What an operator can do about an error; null where there is nothing to say. @returns {{words: string, link?: string, href?: string}|null} */
function adviceOn({ error, provider, key_id: key, conversation_id: conversation }) {
  const failed = { link: "Other requests that failed there", href: to(["requests"], { outcome: "error", provider }) };
  const advice = {
    upstream_unavailable: { words: `Nothing answers at the address of ${provider ?? "the provider"}, or it was too slow. A second deployment or a fallback of the model takes over in such a case.`, ...OVERVIEW },
    upstream_refused: { words: `${provider ?? "The provider"} answered with an error of its own; its status is above. The gateway called again as often as it may.`, ...failed },
    budget_exceeded: { words: "The key has spent its budget of this month.", link: "Change the budget", href: to(["keys"]) },
    rate_limit_exceeded: { words: "The key sent more than its rate limit allows.", link: "Its requests", href: to(["requests"], { key_id: key }) },
    context_length_exceeded: { words: "Instructions, tools, pins and the newest message alone do not fit into the window.", ...(conversation && { link: "What is pinned", href: to(["conversations", conversation, "summaries"]) }) },
    model_not_found: { words: "No configured model has this name.", link: "The configured models", href: to(["settings"], { q: "models." }) },
    invalid_api_key: { words: "The key is wrong, revoked or expired.", link: "All keys", href: to(["keys"]) },
  };
  return advice[error] ?? null;
}

function waits({ queue_ms: queue, compaction_ms: compaction, timeline }) {
  const told = [];
  if (queue >= WORTH_TELLING_MS) told.push(`waited ${milliseconds(queue)} for a free slot`);
  if (compaction >= WORTH_TELLING_MS || timeline.some((step) => step.name === "compaction")) {
    const calls = timeline.filter((step) => step.name === "summary").length;
    told.push(`waited ${milliseconds(compaction)} for ${calls > 1 ? `${calls} summaries` : "a summary"}, because the history was longer than the compaction threshold`);
  }
  for (const step of timeline) {
    if (step.name === "lease" && step.end_ms - step.start_ms >= WORTH_TELLING_MS) told.push(`waited ${milliseconds(step.end_ms - step.start_ms)} for another request of the conversation`);
  }
  return told;
}

function tellAttempt({ detail, start_ms: start, end_ms: end }, at, all, { first_byte_ms: firstByte, stream }) {
  const who = all > 1 ? `the ${ORDINALS[at] ?? `${at + 1}th`} call, ${detail.provider},` : detail.provider ?? "the provider";
  if (isFailed(detail)) {
    const how = detail.status ? `answered ${detail.status}` : (REASONS[detail.error] ?? `failed (${detail.error})`);
    return `${who} ${how} after ${milliseconds(end - start)}`;
  }
  const isLast = at === all - 1;
  if (isLast && stream && firstByte !== null && firstByte > start) return `${who} began to answer after ${milliseconds(firstByte - start)} and ended after ${milliseconds(end - start)}`;
  return `${who} answered after ${milliseconds(end - start)}`;
}
return { story: story, adviceOn: adviceOn };
})();
const $js_pages_requests_one = (() => { // js/pages/requests/one.js
// One request: in a sentence what took its time, its steps on one time axis, and the same as a table.
const { html: html } = $js_lib;
const { ROOT: ROOT, get: get } = $js_api;
const { count: count, dollars: dollars, milliseconds: milliseconds, moment: moment, nameTenant: nameTenant, percent: percent } = $js_format;
const { useLoaded: useLoaded } = $js_load;
const { to: to } = $js_router;
const { Copy: Copy, Failure: Failure, Loading: Loading, Status: Status } = $js_ui_parts;
const { NotShown: NotShown } = $js_pages_operation_access;
const { Outcome: Outcome, seenAt: seenAt } = $js_pages_requests_parts;
const { adviceOn: adviceOn, story: story } = $js_pages_requests_story;
const { KINDS: KINDS, SpentKey: SpentKey, kindOf: kindOf, spentByKind: spentByKind } = $js_pages_requests_time_spent;

const SETTING = html`<code>telemetry.recent_requests</code> above 0`;
/** A step shorter than this share of the axis is drawn this wide, so that it can be seen. */
const LEAST_SHARE = 0.4;
const NAMES = { read: "Read and parse", queue: "Wait for a free slot", join: "Wait for an equal request", resolve: "Find model and conversation", recall: "Search old messages", lease: "Wait for a lease", plan: "Plan the view", quotations: "Choose quotations", compaction: "Compact", summary: "Summary call", attempt: "Call of the provider", store: "Store", cache_lost: "The provider's cache was lost", first_byte: "First byte", end: "End" };
const TICKS = [0, 0.25, 0.5, 0.75, 1];

function RequestPage({ id }) {
  const request = useLoaded((signal) => get(`v1/admin/requests/${encodeURIComponent(id)}`, {}, { signal }), [id]);
  const { data, error } = request;
  return html`
    <p class="small"><a href=${to(["requests"])}>← All requests</a></p>
    <div class="page-head"><h1 tabindex="-1">Request</h1>${data && html`<span class="page-facts small soft number">${moment(data.started_at)}</span>`}</div>
    ${error && !data && (error.code === "request_not_found" ? html`<${Failure} error=${error} />` : html`<${NotShown} error=${error} what="requests" setting=${error.code ? null : SETTING} retry=${request.reload} />`)}
    ${!data && !error && html`<${Loading}>Reading the request…<//>`}
    ${data && html`<${One} of=${data} />`}`;
}

function One({ of: request }) {
  const spent = spentByKind(request);
  return html`<div class="stack request-page">
    <p class="story" role="status">${story(request)}</p>
    <${Advice} of=${request} />
    <${Facts} of=${request} />
    <section class="panel"><header><h2>Where the time went</h2><span class="small soft number">${milliseconds(request.duration_ms)}</span></header>
      <${Axis} of=${request} />
      <${SpentKey} spent=${spent} />
    </section>
    <section class="panel list"><header><h2>Steps</h2></header><${Steps} of=${request} /></section>
  </div>`;
}

/** What to do about an error. */
function Advice({ of: request }) {
  const advice = adviceOn(request);
  if (!advice) return null;
  return html`<p class="advice">${advice.words}${advice.href && html` <a href=${advice.href}>${advice.link}</a>`}</p>`;
}

function Facts({ of: request }) {
  const isOther = request.answered_by && request.answered_by !== request.model;
  const rows = [
    ["Status", html`<${Outcome} of=${request} />`],
    ["Model", html`<span class="break">${request.model ?? "–"}${isOther && html` <span class="soft">answered by ${request.answered_by}</span>`}</span>`],
    ["Provider", html`${request.provider ?? "–"}${request.attempts > 1 && html` <span class="soft">${count(request.attempts)} calls</span>`}`],
    ["Endpoint", html`<code class="break">${request.endpoint}</code>${request.stream && html` <span class="soft">streamed</span>`}`],
    ["Context", request.context_status ? html`<${Status} of=${request.context_status} />` : "–"],
    ["Prompt", html`<span class="number">${count(request.prompt_tokens)} tokens${request.cached_tokens ? html`, <span class="soft">${percent(request.cached_tokens, request.prompt_tokens)} cached</span>` : ""}</span>`],
    ["Answer", html`<span class="number">${count(request.completion_tokens)} tokens</span>`],
    ["Cost", html`<span class="number">${dollars(request.cost_usd)}</span>`],
    ["Tenant", request.tenant ? html`<a href=${to(["requests"], { tenant: request.tenant })} title=${request.tenant}>${nameTenant(request)}</a>` : "–"],
    ["Key", request.key_id ? html`<a class="break" href=${to(["requests"], { key_id: request.key_id })} title=${request.key_id}>${request.key_name ?? request.key_id}</a>` : "–"],
    ["Conversation", request.conversation_id ? html`<a class="break" href=${seenAt(request)}>What the model saw</a> · <a href=${to(["conversations", request.conversation_id, "log"])}>Log</a>` : "–"],
    ["Id", html`<code class="break">${request.id}</code> <${Copy} text=${request.id} name="Copy the id" /> <${Copy} text=${new URL(`v1/admin/requests/${request.id}`, ROOT).href} label="Copy address" name="Copy the address of its JSON" />`],
  ];
  return html`<dl class="request-facts panel">${rows.map(([name, value]) => html`<div key=${name}><dt class="small soft">${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** The steps as bars over each other, on one axis. The table below has the same in numbers, so this is hidden from screen readers. */
function Axis({ of: { timeline, duration_ms: whole, first_byte_ms: firstByte } }) {
  const most = Math.max(whole ?? 0, ...timeline.map((step) => step.end_ms), 1);
  const at = (ms) => `${(100 * ms) / most}%`;
  const steps = timeline.filter((step) => !["first_byte", "end"].includes(step.name));
  return html`<div class="axis" aria-hidden="true">
    <div class="axis-ticks number small soft">${TICKS.map((share) => html`<span key=${share} style=${{ left: `${100 * share}%` }}>${milliseconds(most * share)}</span>`)}</div>
    <div class="axis-rows">
      ${steps.map((step, number) => html`<div class="axis-row" key=${number}>
        <span class="axis-name small">${NAMES[step.name] ?? step.name}</span>
        <span class="axis-track"><span class="axis-bar kind-${kindOf(step)}" title="${NAMES[step.name] ?? step.name}: ${milliseconds(step.end_ms - step.start_ms)}"
          style=${{ left: at(step.start_ms), width: `${Math.max(LEAST_SHARE, (100 * (step.end_ms - step.start_ms)) / most)}%` }}></span>
          ${firstByte !== null && html`<span class="axis-mark" style=${{ left: at(firstByte) }}></span>`}</span>
      </div>`)}
    </div>
    ${firstByte !== null && html`<p class="small soft axis-note">The line marks the first byte, after ${milliseconds(firstByte)}.</p>`}
  </div>`;
}

function Steps({ of: { timeline } }) {
  return html`<div class="scroll-x" tabindex="0" role="region" aria-label="Steps"><table class="data steps">
    <thead><tr><th scope="col">Step</th><th scope="col" class="number">Begins</th><th scope="col" class="number">Takes</th><th scope="col">Details</th></tr></thead>
    <tbody>${timeline.map((step, number) => html`<tr key=${number}>
      <th scope="row"><span class="spent-swatch kind-${kindOf(step)}" title=${KINDS[kindOf(step)]}></span>${NAMES[step.name] ?? step.name}</th>
      <td class="number">${milliseconds(step.start_ms)}</td>
      <td class="number">${step.end_ms > step.start_ms ? milliseconds(step.end_ms - step.start_ms) : ""}</td>
      <td class="break small">${Object.entries(step.detail).filter(([, value]) => value !== null).map(([name, value]) => html`<span class="detail" key=${name}><span class="soft">${name}</span> ${String(value)}</span> `)}</td>
    </tr>`)}</tbody></table></div>`;
}
return { RequestPage: RequestPage };
})();
const $js_pages_requests = (() => { // js/pages/requests.js
// The requests of the last minutes, and one of them as a timeline.
const { html: html } = $js_lib;
const { RequestList: RequestList } = $js_pages_requests_list;
const { RequestPage: RequestPage } = $js_pages_requests_one;

function Requests({ route }) {
  const [, id] = route.parts;
  return id ? html`<${RequestPage} key=${id} id=${id} route=${route} />` : html`<${RequestList} route=${route} />`;
}
return { Requests: Requests };
})();
const $js_pages_settings = (() => { // js/pages/settings.js
// The settings as they are in force, with where each comes from, and the limits learned from refusals. Only an operator
// may see them.
const { html: html, useEffect: useEffect, useMemo: useMemo, useState: useState } = $js_lib;
const { get: get, send: send } = $js_api;
const { count: count } = $js_format;
const { useLoaded: useLoaded } = $js_load;
const { go: go } = $js_router;
const { useAction: useAction } = $js_ui_confirm;
const { Badge: Badge, Button: Button, Empty: Empty, Failure: Failure, Loading: Loading, When: When } = $js_ui_parts;
const { NotShown: NotShown } = $js_pages_operation_access;

function Settings({ route, session }) {
  const settings = useLoaded((signal) => get("v1/admin/settings", {}, { signal }), []);
  const limits = useLoaded((signal) => get("v1/admin/learned-limits", {}, { signal }), []);
  const [typed, setTyped] = useState(route.query.get("q") ?? "");
  useEffect(() => setTyped(route.query.get("q") ?? ""), [route.query.get("q")]);
  const isChanged = route.query.get("changed") === "1";
  const ask = (changed) => go(["settings"], { q: typed, changed: isChanged ? "1" : "", ...changed }, { replace: true });
  const { data, error } = settings;
  const rows = useMemo(() => (data?.data ?? []).filter((row) => matches(row, typed) && (!isChanged || row.source !== "default")), [data, typed, isChanged]);
  return html`
    <div class="page-head"><h1 tabindex="-1">Settings</h1>${data && html`<span class="page-facts small soft number">${count(data.data.filter((row) => row.source !== "default").length)} of ${count(data.data.length)} are set</span>`}</div>
    ${error && !data && html`<${NotShown} error=${error} what="settings" retry=${settings.reload} />`}
    ${!data && !error && html`<${Loading}>Reading the settings…<//>`}
    ${data && html`
      <div class="request-filters" role="search">
        <input class="input" type="search" aria-label="Search settings" placeholder="Search: window, key, retention…" value=${typed}
          onInput=${(event) => { setTyped(event.target.value); ask({ q: event.target.value }); }} />
        <button type="button" class="choice" aria-pressed=${isChanged} onClick=${() => ask({ changed: isChanged ? "" : "1" })}>Only what is set</button>
      </div>
      ${session.simulated && html`<${NoProvider} />`}
      ${limits.data?.data.length > 0 && html`<${LearnedLimits} limits=${limits.data.data} onCleared=${limits.reload} />`}
      <p class="visually-hidden" role="status">${count(rows.length)} settings</p>
      ${rows.length === 0 ? html`<div class="panel"><${Empty}><p>No setting is like that.</p><//></div>` : html`<div class="stack settings">${groupsOf(rows).map(([name, group]) => html`<${Group} key=${name} name=${name} rows=${group} />`)}</div>`}`}
  `;
}

/** What to do for a model of one's own. */
function NoProvider() {
  return html`<section class="panel"><header><h2>No provider is configured: a simulated model answers</h2></header>
    <p><code>concertina init my.yaml</code> asks three questions and writes a configuration with your provider. Start the gateway with it: <code>make run CONFIG=my.yaml</code>,
      or <code>concertina serve --config my.yaml</code>.</p></section>`;
}

const matches = (row, typed) => typed.toLowerCase().split(/\s+/).every((word) => row.path.toLowerCase().includes(word) || String(shown(row)).toLowerCase().includes(word));

/** The section of a setting; each provider, model and policy is one of its own. */
function sectionOf(path) {
  const parts = path.split(".");
  if (parts.length === 1) return "general";
  return ["providers", "models", "policies"].includes(parts[0]) && parts.length > 2 ? parts.slice(0, 2).join(".") : parts[0];
}

function groupsOf(rows) {
  const groups = new Map();
  for (const row of rows) {
    const name = sectionOf(row.path);
    groups.set(name, [...(groups.get(name) ?? []), row]);
  }
  return [...groups];
}

function Group({ name, rows }) {
  return html`<section class="panel list"><header><h2><code>${name}</code></h2></header><table class="data settings-table">
    <thead class="visually-hidden"><tr><th scope="col">Setting</th><th scope="col">Value</th><th scope="col">Source</th></tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.path} class=${row.source === "default" ? "default" : ""}>
      <th scope="row" class="break"><code>${row.path}</code></th><td class="break"><code>${shown(row)}</code></td>
      <td>${row.source === "default" ? html`<span class="soft small">default</span>` : html`<${Badge} title=${row.place ?? ""}>${row.source}<//>`}${row.place && html` <span class="soft small break">${row.place}</span>`}</td></tr>`)}</tbody>
  </table></section>`;
}

function LearnedLimits({ limits, onCleared }) {
  const { busy, error, run } = useAction((id) => send("DELETE", `v1/admin/learned-limits/${id.split("/").map(encodeURIComponent).join("/")}`), onCleared);
  return html`<section class="panel list"><header><h2>Limits learned from refusals</h2></header>
    <div class="scroll-x" tabindex="0" role="region" aria-label="Limits learned from refusals"><table class="data">
      <thead><tr><th scope="col">Provider and model</th><th scope="col" class="number">Tokens</th><th scope="col">Source</th><th scope="col">Learned</th>
        <th scope="col"><span class="visually-hidden">Actions</span></th></tr></thead>
      <tbody>${limits.map((limit) => html`<tr key=${limit.id}><th scope="row" class="break"><code>${limit.id}</code></th><td class="number">${count(limit.tokens)}</td>
        <td>${limit.stated ? "named by the provider" : "estimated"}</td><td><${When} at=${limit.learned_at} /></td>
        <td class="number"><${Button} small kind="plain" disabled=${busy} aria-label=${`Clear the limit of ${limit.id}`} onClick=${() => run(limit.id)}>Clear<//></td></tr>`)}</tbody>
    </table></div>
    <p class="small soft list-note">Where <code>context_window</code> is set, a limit changes no window: set the right one. A limit is forgotten after a day.</p>
    <${Failure} error=${error} /></section>`;
}

const shown = ({ value, secret }) => (secret && value === null ? "not set" : typeof value === "string" ? value : JSON.stringify(value));
return { Settings: Settings };
})();
const $js_frame_pages = (() => { // js/frame/pages.js
// The pages of the console: their names in the address, and who has a link to them.
const { Chat: Chat } = $js_pages_chat;
const { Conversation: Conversation } = $js_pages_conversation_page;
const { Conversations: Conversations } = $js_pages_conversations;
const { Costs: Costs } = $js_pages_costs;
const { Keys: Keys } = $js_pages_keys;
const { Overview: Overview } = $js_pages_overview;
const { Requests: Requests } = $js_pages_requests;
const { Settings: Settings } = $js_pages_settings;
const { isOperator: isOperator } = $js_session;

/** `operator`: only somebody who may see all tenants has a link to it. `scope`: only who has that scope. */
const PAGES = [
  { name: "conversations", text: "Conversations", view: ({ route }) => (route.parts.length > 1 ? Conversation : Conversations) },
  { name: "chat", text: "Chat", view: () => Chat },
  { name: "overview", text: "Overview", view: () => Overview },
  { name: "requests", text: "Requests", view: () => Requests, operator: true },
  { name: "costs", text: "Costs", view: () => Costs, scope: "read" },
  { name: "keys", text: "Keys", view: () => Keys, operator: true },
  { name: "settings", text: "Settings", view: () => Settings, operator: true },
];

/** The pages that somebody has links to. */
const pagesOf = (session) => PAGES.filter((page) => (!page.operator || isOperator(session)) && (!page.scope || session.scopes.includes(page.scope)));

/** The page of an address, or undefined. */
const findPage = (name) => PAGES.find((page) => page.name === name);
return { pagesOf: pagesOf, findPage: findPage };
})();
const $js_frame_bar = (() => { // js/frame/bar.js
// The bar at the top: one line at any width, and it stays while the page scrolls.
const { html: html } = $js_lib;
const { to: to } = $js_router;
const { credentials: credentials, isOperator: isOperator, signOut: signOut } = $js_session;
const { ICONS: ICONS } = $js_ui_icons;
const { Menu: Menu } = $js_ui_menu;
const { Badge: Badge } = $js_ui_parts;
const { Theme: Theme } = $js_ui_theme;
const { pagesOf: pagesOf } = $js_frame_pages;

const PALETTE_KEYS = /Mac|iPhone|iPad/.test(navigator.platform) ? "⌘K" : "Ctrl K";
const SIMULATED = "No provider is configured: answers are made up";

/** Also without a session, so that nothing moves once it is there. */
function Bar({ session, current, onPalette, onKeyboard, onChangeKey }) {
  return html`<header class="bar">
    ${session && html`<${Menu} kind="menu-pages" label="Menu" face=${ICONS.menu}>${() => html`<nav aria-label="Pages"><${Links} session=${session} current=${current} /></nav>`}<//>`}
    <a class="brand" href="#/conversations"><img src="icon.svg" alt="" width="24" height="24" />Concertina</a>
    ${session && html`
      <nav class="bar-pages" aria-label="Pages"><${Links} session=${session} current=${current} /></nav>
      ${session.simulated && html`<${Simulated} session=${session} />`}
      <button type="button" class="bar-button palette-opener" aria-label="Search and commands" aria-keyshortcuts="Control+K Meta+K" onClick=${onPalette}>
        ${ICONS.search}<span class="palette-words">Search or do…</span><kbd>${PALETTE_KEYS}</kbd></button>
      <${Account} session=${session} onKeyboard=${onKeyboard} onChangeKey=${onChangeKey} />
    `}
  </header>`;
}

/** What it means, and for who may see them the settings, where it says how to change it. */
function Simulated({ session }) {
  const badge = html`<${Badge} kind="warn" title=${SIMULATED}>Simulated model<//>`;
  return isOperator(session) ? html`<a class="bar-note" href=${to(["settings"])}>${badge}</a>` : html`<span class="bar-note">${badge}</span>`;
}

function Links({ session, current }) {
  return pagesOf(session).map(
    (page) => html`<a key=${page.name} href=${to([page.name])} aria-current=${page.name === current ? "page" : undefined}>${page.text}</a>`,
  );
}

/** Who looks, as the bar says it. */
function nameViewer(session) {
  const { key, endUser } = credentials();
  const name = session.operator ? "operator" : key ? `key …${key.slice(-4)}` : "no key";
  return endUser ? `${name} · ${endUser}` : name;
}

/** Whose conversations these are, and the way to look as somebody else. */
function Account({ session, onKeyboard, onChangeKey }) {
  const name = nameViewer(session);
  const { key } = credentials();
  return html`<${Menu} kind="menu-account" label=${`Account: ${name}`} face=${html`${ICONS.person}<span class="who">${name}</span>`}>${(close) => {
    const leading = (act) => () => { close(); act(); };
    return html`
      <p class="menu-facts"><strong class="break">${name}</strong>
        <span class="soft small">${describeViewer(session, key)}</span></p>
      <button type="button" class="menu-item" onClick=${leading(onChangeKey)}>Change key</button>
      ${key && html`<button type="button" class="menu-item" onClick=${signOut}>Sign out</button>`}
      <div class="menu-item still"><${Theme} /></div>
      <button type="button" class="menu-item" onClick=${leading(onKeyboard)}>Keyboard <kbd>?</kbd></button>
      <p class="menu-facts soft small">Concertina ${session.version}${session.simulated && html`<br />${SIMULATED}.`}</p>`;
  }}<//>`;
}

function describeViewer(session, key) {
  if (isOperator(session)) return "Sees all tenants and the operation of the gateway.";
  if (key) return "Sees what was said with this key.";
  return "Sees what was said without a key.";
}
return { PALETTE_KEYS: PALETTE_KEYS, Bar: Bar, nameViewer: nameViewer };
})();
const $js_pages_sign_in = (() => { // js/pages/sign_in.js
// Which key to look with. Without a session it is the whole page, otherwise a dialog.
const { html: html, useState: useState } = $js_lib;
const { credentials: credentials, hasLinkToken: hasLinkToken, signIn: signIn } = $js_session;
const { Button: Button, Dialog: Dialog, Failure: Failure, Field: Field } = $js_ui_parts;
const { OldLink: OldLink } = $js_pages_operation_access;

/** What a header may hold: other characters, such as a typographic dash in a key that was copied, never leave the browser. */
const HEADER = /^[\x20-\x7e]*$/;

function SignIn({ session, error, onClose }) {
  const before = credentials();
  const [key, setKey] = useState(before.key);
  const [endUser, setEndUser] = useState(before.endUser);
  const submit = (event) => {
    event.preventDefault();
    if (!isPlain) return;
    signIn({ key, endUser });
    onClose?.();
  };
  const isPlain = HEADER.test(key.trim()) && HEADER.test(endUser.trim());
  const form = html`<form class="stack" onSubmit=${submit}>
    <${Field} label="API key or operator’s token" hint="The key that the application sends, or the operator’s token, which is in the link that the gateway prints at its start. It stays in this tab and is sent to this gateway only.">
      ${(id, hint) => html`<input id=${id} aria-describedby=${hint} class="input" type="password" autocomplete="off"
        spellcheck="false" value=${key} onInput=${(event) => setKey(event.target.value)} />`}
    <//>
    ${(session?.end_users || before.endUser) && html`<${Field} label="End user" hint="Leave empty to see what belongs to the key itself.">
      ${(id, hint) => html`<input id=${id} aria-describedby=${hint} class="input" autocomplete="off" value=${endUser}
        onInput=${(event) => setEndUser(event.target.value)} />`}
    <//>`}
    ${!isPlain && html`<p class="notice warn" role="alert">There is a character in it that no key has. Was it copied whole, and nothing else with it?</p>`}
    <div class="row"><${Button} kind="primary" type="submit" disabled=${!isPlain}>Look with this key<//></div>
  </form>`;
  if (onClose) return html`<${Dialog} title="Whose conversations?" onClose=${onClose}>${form}<//>`;
  return html`<main class="page sign-in stack">
    <h1>Concertina</h1>
    ${[401, 403].includes(error.status) && html`<p class="soft">This gateway wants a key with the scope <code>read</code>.</p>`}
    ${hasLinkToken() && html`<${OldLink} />`}
    ${(before.key || before.endUser) && html`<${Failure} error=${error} />`}
    <div class="panel">${form}</div>
  </main>`;
}
return { SignIn: SignIn };
})();
const $js_frame_keyboard_help = (() => { // js/frame/keyboard_help.js
// What the keyboard does, beside what browsers do anyway.
const { html: html } = $js_lib;
const { Dialog: Dialog } = $js_ui_parts;
const { PALETTE_KEYS: PALETTE_KEYS } = $js_frame_bar;

const KEYS = [
  ["Anywhere", [
    [PALETTE_KEYS, "search, go to a page, do something"],
    ["?", "this help"],
    ["Esc", "close a dialog or a menu"],
    ["Tab", "to the next control; the first one of a page skips to its content"],
  ]],
  ["In the palette", [
    ["↑ ↓", "choose"],
    ["Enter", "open or do it"],
  ]],
  ["In a conversation", [
    ["↑ ↓ PgUp PgDn", "scroll the log, once it has the focus"],
    ["Home End", "to its beginning or end"],
    ["Enter", "in “Find”: to the next message; with Shift to the one before"],
  ]],
  ["In a chat", [
    ["Enter", "send"],
    ["Shift Enter", "begin a new line"],
    ["Esc", "stop the answer"],
  ]],
  ["In a chart", [["← →", "move along it"]]],
];

function KeyboardHelp({ onClose }) {
  return html`<${Dialog} title="Keyboard" onClose=${onClose}>
    ${KEYS.map(([place, keys]) => html`<section key=${place}><h3>${place}</h3>
      <dl class="keys">${keys.map(([name, words]) => html`<div><dt><kbd>${name}</kbd></dt><dd>${words}</dd></div>`)}</dl></section>`)}
  <//>`;
}
return { KeyboardHelp: KeyboardHelp };
})();
const $js_ui_fuzzy = (() => { // js/ui/fuzzy.js
// How well a text matches what somebody types: all words of it, as parts of the text or as letters in order.

const WORD_START = 3;
const INSIDE = 2;
const MAX_GAP_CHARS = 12;

/**
 * @param {string} query
 * @param {string} text
 * @returns {{score: number, places: Set<number>}|null}  null if it does not match; `places` are the matched characters
 */
function matchText(query, text) {
  const lower = text.toLowerCase();
  const places = new Set();
  let score = 0;
  for (const word of query.toLowerCase().split(/\s+/).filter(Boolean)) {
    const found = findPart(word, lower) ?? findLetters(word, lower);
    if (!found) return null;
    score += found.score;
    found.places.forEach((place) => places.add(place));
  }
  // Of two equal matches, the shorter text is meant.
  return { score: score - lower.length / 1000, places };
}

function findPart(word, text) {
  let best = null;
  for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + 1)) {
    const weight = isWordStart(text, at) ? WORD_START : INSIDE;
    if (!best || weight > best.weight) best = { at, weight };
    if (best.weight === WORD_START) break;
  }
  return best && { score: best.weight * word.length, places: Array.from(word, (_, index) => best.at + index) };
}

/** The letters in order, near each other, beginning at the start of a word. */
function findLetters(word, text) {
  for (let start = text.indexOf(word[0]); start >= 0; start = text.indexOf(word[0], start + 1)) {
    if (!isWordStart(text, start)) continue;
    const places = [start];
    while (places.length < word.length) {
      const next = text.indexOf(word[places.length], places.at(-1) + 1);
      if (next < 0 || next - places.at(-1) > MAX_GAP_CHARS) break;
      places.push(next);
    }
    if (places.length === word.length) return { score: word.length - (places.at(-1) - start) / 100, places };
  }
  return null;
}

const isWordStart = (text, at) => at === 0 || !/[\p{L}\p{N}]/u.test(text[at - 1]);
return { matchText: matchText };
})();
const $js_frame_palette = (() => { // js/frame/palette.js
// The palette: pages, commands, conversations, models, keys, tenants and settings by a few letters, what an id names, and
// what was said anywhere.
const { drawnNow: drawnNow, html: html, useEffect: useEffect, useId: useId, useMemo: useMemo, useRef: useRef, useState: useState } = $js_lib;
const { get: get } = $js_api;
const { pageCommands: pageCommands } = $js_commands;
const { useLoaded: useLoaded, useSettled: useSettled } = $js_load;
const { lookUp: lookUp } = $js_named;
const { readAllKeys: readAllKeys } = $js_pages_operation_keys;
const { nameTenant: nameTenant, shortId: shortId } = $js_format;
const { go: go } = $js_router;
const { credentials: credentials, isOperator: isOperator, signOut: signOut } = $js_session;
const { matchText: matchText } = $js_ui_fuzzy;
const { useModal: useModal } = $js_ui_parts;
const { THEMES: THEMES, setTheme: setTheme } = $js_ui_theme;
const { pagesOf: pagesOf } = $js_frame_pages;

const RECENT = 50;
const SHOWN_UNASKED = 6;
const SHOWN = 8;
const MIN_SEARCH_CHARS = 3;
const SEARCH_SETTLE_MS = 200;
const FOUND = 6;
const THEME_NOTES = { system: "as the system says" };

/**
 * @typedef {object} Entry
 * @property {string} key
 * @property {string} text  what is matched and shown
 * @property {string} [note]  shown beside it, and matched as well
 * @property {string} [also]  matched, and not shown
 * @property {() => void} run
 */

function Palette({ session, show, onClose }) {
  const dialog = useModal((element) => element.querySelector("input"));
  const [typed, setTyped] = useState("");
  const [chosen, setChosen] = useState(0);
  const id = useId();
  const groups = useEntries(session, show, typed.trim());
  const entries = groups.flatMap((group) => group.entries);
  const current = entries[Math.min(chosen, entries.length - 1)];
  const list = useRef(null);
  useEffect(() => {
    list.current?.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest" });
  }, [current?.key]);
  const run = (entry) => {
    drawnNow(onClose);
    entry.run();
  };
  const onKey = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: SHOWN, PageUp: -SHOWN }[event.key];
    if (step && entries.length) {
      event.preventDefault();
      const at = entries.indexOf(current);
      const isStep = Math.abs(step) === 1;
      setChosen(isStep ? (at + step + entries.length) % entries.length : Math.max(0, Math.min(entries.length - 1, at + step)));
    } else if (event.key === "Enter" && !event.isComposing && current) {
      event.preventDefault();
      run(current);
    }
  };
  return html`<dialog class="dialog palette" ref=${dialog} aria-label="Search and commands" onCancel=${(event) => { event.preventDefault(); onClose(); }}
    onClick=${(event) => event.target === dialog.current && onClose()}>
    <input class="palette-input" role="combobox" aria-label="Search and commands" aria-expanded="true" aria-autocomplete="list" aria-controls="${id}-list"
      aria-activedescendant=${current ? `${id}-${entries.indexOf(current)}` : undefined} autocomplete="off" spellcheck="false" placeholder="A page, a conversation, an id, a model, a command, words that were said"
      value=${typed} onInput=${(event) => { setTyped(event.target.value); setChosen(0); }} onKeyDown=${onKey} />
    <div class="palette-list" id="${id}-list" role="listbox" aria-label="Results" ref=${list}>
      ${groups.map((group) => html`<div role="group" key=${group.name} aria-label=${group.name}>
        <div class="palette-group" aria-hidden="true">${group.name}</div>
        ${group.entries.map((entry) => html`<div class="palette-entry" role="option" key=${entry.key} id="${id}-${entries.indexOf(entry)}" aria-selected=${entry === current}
          onPointerMove=${() => entry !== current && setChosen(entries.indexOf(entry))} onClick=${() => run(entry)}>
          <span class="palette-text">${withMarks(entry)}</span>${entry.note && html`<span class="palette-note">${entry.note}</span>`}
        </div>`)}
      </div>`)}
    </div>
    <p class="visually-hidden" role="status">${entries.length === 0 ? "Nothing found" : `${entries.length} results`}</p>
    ${entries.length === 0 && html`<p class="empty">Nothing is called like that.</p>`}
    <footer class="palette-foot small soft" aria-hidden="true"><span><kbd>↑</kbd> <kbd>↓</kbd> choose</span><span><kbd>Enter</kbd> open</span><span><kbd>Esc</kbd> close</span></footer>
  </dialog>`;
}

/** What the palette shows for `query`, by group: what an id names, then the group with the best match; what was said is last. */
function useEntries(session, show, query) {
  const recent = useLoaded((signal) => get("v1/conversations", { limit: RECENT, "include[]": "title" }, { signal }), []);
  const models = useLoaded((signal) => (session.scopes.includes("chat") ? get("v1/models", {}, { signal }) : null), []);
  const isAll = isOperator(session);
  const keys = useLoaded((signal) => (isAll ? readAllKeys(signal) : []), []);
  const settings = useLoaded(async (signal) => (isAll ? (await get("v1/admin/settings", {}, { signal })).data : []), []);
  const groups = useMemo(() => [
    { name: "This page", entries: pageCommands().map((command, index) => ({ key: `here${index}`, ...command })) },
    { name: "Pages", entries: pageEntries(session) },
    { name: "Conversations", entries: (recent.data?.data ?? []).map(conversationEntry) },
    { name: "Commands", entries: commandEntries(session, show) },
    { name: "Models", entries: (models.data?.data ?? []).map(modelEntry) },
    { name: "Keys", entries: (keys.data ?? []).map(keyEntry), isAsked: true },
    { name: "Tenants", entries: tenantEntries(keys.data ?? []), isAsked: true },
    { name: "Settings", entries: (settings.data ?? []).map(settingEntry), isAsked: true },
  ], [recent.data, models.data, keys.data, settings.data]);
  const settled = useSettled(query, SEARCH_SETTLE_MS);
  const said = useLoaded((signal) => searchMessages(settled, signal), [settled]);
  const named = useLoaded(async (signal) => (await lookUp(settled, session, signal)).map(namedEntry), [settled]);
  if (!query) return groups.filter((group) => !group.isAsked).map((group) => ({ ...group, entries: group.entries.slice(0, SHOWN_UNASKED) })).filter(isFilled);
  const matched = groups.map((group) => matchGroup(group, query)).filter(isFilled).sort((one, other) => other.score - one.score);
  const ids = { name: "By its id", entries: settled === query && named.data ? named.data : [] };
  return [...[ids].filter(isFilled), ...matched, { name: "Messages", entries: [...(settled === query && said.data ? said.data : []), searchEntry(query)] }];
}

const isFilled = (group) => group.entries.length > 0;

function matchGroup({ name, entries }, query) {
  const found = entries.flatMap((entry) => {
    const inText = matchText(query, entry.text);
    const match = inText ?? matchText(query, `${entry.text} ${entry.note ?? ""} ${entry.also ?? ""}`);
    return match ? [{ ...entry, score: match.score - (inText ? 0 : 1), places: inText?.places }] : [];
  });
  found.sort((one, other) => other.score - one.score);
  return { name, entries: found.slice(0, SHOWN), score: found[0]?.score ?? 0 };
}

async function searchMessages(words, signal) {
  if (words.length < MIN_SEARCH_CHARS) return [];
  const found = await get("v1/search", { q: words, limit: FOUND, "include[]": "title" }, { signal });
  return found.data.map((hit) => ({
    key: `said-${hit.id}`,
    text: hit.title ?? "Untitled",
    note: hit.text,
    run: () => go(["conversations", hit.conversation_id, "log"], { q: words, seq: hit.seq }),
  }));
}

const searchEntry = (query) => ({
  key: "search",
  text: `Search all conversations for “${query}”`,
  run: () => go(["conversations"], { q: query }),
});

function pageEntries(session) {
  return pagesOf(session).map((page) => ({ key: `page-${page.name}`, text: page.text, run: () => go([page.name]) }));
}

const conversationEntry = (record) => ({
  key: record.id,
  text: record.title ?? record.external_id ?? "Untitled",
  note: record.external_id ?? shortId(record.id),
  also: record.id,
  run: () => go(["conversations", record.id]),
});

const modelEntry = ({ id }) => ({ key: `model-${id}`, text: id, note: "begin a chat", run: () => go(["chat"], { model: id }) });

const namedEntry = ({ text, note, href }) => ({ key: href, text, note, run: () => (location.hash = href) });

const keyEntry = (key) => ({
  key: key.id,
  text: key.name,
  note: `key ${key.hint}: its requests`,
  also: key.id,
  run: () => go(["requests"], { key_id: key.id }),
});

/** Tenants that have keys. One that was made for a key has the name of its oldest key. */
function tenantEntries(keys) {
  const oldest = new Map([...keys].reverse().map((key) => [key.tenant, key]));
  return [...oldest].map(([tenant, { name }]) => ({
    key: `tenant-${tenant}`,
    text: nameTenant({ tenant, tenant_name: tenant.startsWith("ten_") ? name : null }),
    note: "tenant: its conversations",
    also: tenant,
    run: () => go(["conversations"], { tenant }),
  }));
}

const settingEntry = ({ path, value }) => ({
  key: `setting-${path}`,
  text: path,
  note: JSON.stringify(value) ?? "",
  run: () => go(["settings"], { q: path }),
});

function commandEntries(session, show) {
  const themes = Object.entries(THEMES).map(([theme, text]) => ({
    key: `theme-${theme}`, text: `Colours: ${text.toLowerCase()}`, note: THEME_NOTES[theme], run: () => setTheme(theme),
  }));
  return [
    session.scopes.includes("chat") && { key: "new-chat", text: "New chat", run: () => go(["chat"]) },
    { key: "change-key", text: "Change key", run: show.changeKey },
    credentials().key && { key: "sign-out", text: "Sign out", run: signOut },
    { key: "keyboard", text: "Keyboard help", note: "?", run: show.keyboard },
    ...themes,
  ].filter(Boolean);
}

/** The text with the matched letters marked. */
function withMarks({ text, places }) {
  if (!places?.size) return text;
  const parts = [];
  for (const [index, letter] of [...text.split("")].entries()) {
    const isMarked = places.has(index);
    if (parts.at(-1)?.isMarked === isMarked) parts.at(-1).text += letter;
    else parts.push({ text: letter, isMarked });
  }
  return parts.map((part) => (part.isMarked ? html`<mark>${part.text}</mark>` : part.text));
}
return { Palette: Palette };
})();
const $js_frame_frame = (() => { // js/frame/frame.js
// The frame around a page: the bar, the palette, the keyboard help.
const { html: html, useEffect: useEffect, useErrorBoundary: useErrorBoundary, useRef: useRef, useState: useState } = $js_lib;
const { useRoute: useRoute } = $js_router;
const { SignIn: SignIn } = $js_pages_sign_in;
const { Failure: Failure } = $js_ui_parts;
const { Bar: Bar } = $js_frame_bar;
const { KeyboardHelp: KeyboardHelp } = $js_frame_keyboard_help;
const { Palette: Palette } = $js_frame_palette;
const { findPage: findPage } = $js_frame_pages;

const TYPING = "input, textarea, select, [contenteditable]";

function Frame({ session }) {
  const route = useRoute();
  const [name = "conversations"] = route.parts;
  const [open, setOpen] = useState(null);
  const main = useRef(null);
  const isFirst = useRef(true);
  const place = route.parts.join("/");
  const close = () => setOpen(null);
  const show = { palette: () => setOpen("palette"), keyboard: () => setOpen("keyboard"), changeKey: () => setOpen("key") };
  useEffect(() => {
    document.title = `${findPage(name)?.text ?? "Not found"} · Concertina`;
    if (isFirst.current) isFirst.current = false;
    else if (!document.activeElement?.closest(".tabs")) main.current?.querySelector("h1")?.focus();
  }, [place]);
  useShortcuts(show);
  return html`
    <a class="skip-link" href="#main" onClick=${(event) => { event.preventDefault(); main.current?.focus(); }}>
      Skip to content
    </a>
    <${Bar} session=${session} current=${name} onPalette=${show.palette} onKeyboard=${show.keyboard} onChangeKey=${show.changeKey} />
    <main id="main" class="page" tabindex="-1" ref=${main}><${Page} key=${name} route=${route} name=${name} session=${session} /></main>
    ${open === "palette" && html`<${Palette} session=${session} show=${show} onClose=${close} />`}
    ${open === "keyboard" && html`<${KeyboardHelp} onClose=${close} />`}
    ${open === "key" && html`<${SignIn} session=${session} onClose=${close} />`}
  `;
}

/** Ctrl or Cmd with K opens the palette, `?` the help; neither while another dialog is open. */
function useShortcuts(show) {
  const newest = useRef(show);
  newest.current = show;
  useEffect(() => {
    const follow = (event) => {
      if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
      if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey) {
        event.preventDefault();
        newest.current.palette();
      } else if (event.key === "?" && !event.ctrlKey && !event.metaKey && !event.target.closest?.(TYPING)) {
        newest.current.keyboard();
      }
    };
    addEventListener("keydown", follow);
    return () => removeEventListener("keydown", follow);
  }, []);
}

function Page({ route, name, session }) {
  const [error, forget] = useErrorBoundary();
  if (error) return html`<${Failure} error=${error} retry=${forget} />`;
  const page = findPage(name);
  if (!page) return html`<h1 tabindex="-1">There is no such page</h1><p><a href="#/conversations">To the conversations</a></p>`;
  const View = page.view({ route });
  return html`<${View} key=${`${name}/${route.parts[1] ?? ""}`} route=${route} session=${session} />`;
}
return { Frame: Frame };
})();
const $js_main = (() => { // js/main.js
// Begins the console: asks the gateway who is looking, and shows the frame or the sign-in.
const { html: html, render: render, useEffect: useEffect, useState: useState } = $js_lib;
const { actAsOperator: actAsOperator, get: get, nameEndUserHeader: nameEndUserHeader } = $js_api;
const { credentials: credentials, onSession: onSession } = $js_session;
const { useLoaded: useLoaded } = $js_load;
const { Bar: Bar } = $js_frame_bar;
const { Frame: Frame } = $js_frame_frame;
const { Failure: Failure, Loading: Loading } = $js_ui_parts;
const { applyTheme: applyTheme } = $js_ui_theme;
const { SignIn: SignIn } = $js_pages_sign_in;

function App() {
  const [round, setRound] = useState(0);
  useEffect(() => onSession(() => setRound((before) => before + 1)), []);
  const session = useLoaded(async (signal) => {
    actAsOperator(false);
    const told = await get("console/session", {}, { signal });
    actAsOperator(told.operator);
    nameEndUserHeader(told.end_user_header);
    return told;
  }, [round]);
  const { key, endUser } = credentials();
  const isRefused = [401, 403].includes(session.error?.status);
  if (isRefused || (session.error && session.data === null && (key || endUser))) return html`<${SignIn} error=${session.error} />`;
  if (session.data === null) {
    return html`<${Bar} />${session.error
      ? html`<main class="page stack"><h1>Concertina</h1><${Failure} error=${session.error} retry=${session.reload} /></main>`
      : html`<${Loading} />`}`;
  }
  return html`${session.error && html`<${Failure} error=${session.error} />`}<${Frame} key=${round} session=${session.data} />`;
}

applyTheme();
render(html`<${App} />`, document.getElementById("app"));
return {  };
})();
