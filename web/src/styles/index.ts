// In this order: later ones refine earlier ones.
import "./base.css";
import "./layout.css";
import "./list.css";
import "./chat.css";
import "./composer.css";
import "./markdown.css";
import "./forms.css";
import "./candidates.css";
import "./tokens.css";
import "./search.css";
import "./engine.css";
